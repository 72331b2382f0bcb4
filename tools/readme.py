"""Keep the outputs and excerpts in README.md and on other pages literal.

    python tools/readme.py --check [PAGE...]          # compare the quick blocks with what their commands print now
    python tools/readme.py --write [--all] [PAGE...]  # run them and write what they print; with --all the slow ones too

A block is a fence whose lines that begin with `$ ` are commands, each followed by its output. All commands of a block
run in one shell, in the root of the checkout, with this interpreter's programs first in the path. Times and rates vary
from run to run and are left out of the comparison.

An excerpt is a Python fence whose first line is a comment that names a file: `# spec/x.py, without docstrings`. Its
functions are those of the file, the first of each name, without docstrings; its other lines are lines of the file.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from shlex import quote

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "docs/auditing.md",
    "docs/demo.md",
    "docs/measuring.md",
    "docs/protocol.md",
    "docs/proving.md",
    "docs/serving.md",
    "docs/tracing.md",
    "reference/README.md",
)
SLOW = re.compile(r"^(make|(OMP_NUM_THREADS=1 )?onbeat (prove|protocol|mutate|demo|serve)|\.vllm/)")
"""Commands that take more than seconds."""
FENCE = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
EXCERPT = re.compile(r"^```python\n(# (\S+\.py), [^\n]*\n)(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"[\d.,]+ (?:m?s\b|steps/s)|\([\d,]+/s\)|\d+T\d+-\d+-[0-9a-f]+")
MARK = "\x1e"


def commands(block: str) -> list[str]:
    """Return the commands of a block, continuation lines joined to the line that they continue."""
    lines: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            lines.append(line[2:])
        elif lines and lines[-1].endswith("\\"):
            lines[-1] += "\n" + line
    return lines


@cache
def printed(block: str) -> str:
    """Run a block, the same one once; return it with the outputs that its commands have now."""
    wanted = commands(block)
    # Before each command the mark is printed, and the exit codes of the pipeline before it are put back.
    restore = '"$(printf "(exit %s)|" "${codes[@]}" | sed "s/|$//")"'
    script = "codes=(0)\n" + "".join(
        f"printf '{MARK}'\neval {restore}$'\\n'{quote(command)}$'\\n''codes=(\"${{PIPESTATUS[@]}}\")'\n"
        for command in wanted
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    outputs = done.stdout.split(MARK)[1:]
    lines: list[str] = []
    for command, output in zip(wanted, outputs, strict=True):
        lines += [f"$ {command}", *(line.rstrip() for line in output.rstrip("\n").split("\n") if output.strip())]
    return "\n".join(lines) + "\n"


def excerpt(body: str, source: str) -> str:
    """Return the body of an excerpt with its functions as they stand in the source, docstrings left out.

    Raises:
        ValueError: the source has no such function, or no such line outside functions.
    """
    lines = source.splitlines()
    definitions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    functions = {node.name: node for node in sorted(definitions, key=lambda node: -node.lineno)}  # the first of a name
    kept: list[str] = []
    shown = False  # the function above has been written; what the excerpt had of it ends with an empty line
    for line in body.splitlines():
        if name := re.match(r" *def (\w+)", line):
            node = functions.get(name[1])
            if node is None:
                raise ValueError(f"there is no function {name[1]}")
            first = node.body[1 if ast.get_docstring(node) is not None else 0]
            text = [*lines[node.lineno - 1 : node.body[0].lineno - 1], *lines[first.lineno - 1 : node.end_lineno]]
            kept += filter(None, text)
            shown = True
        elif not line or not shown:
            if line not in ("", *lines):
                raise ValueError(f"there is no line {line!r}")
            kept.append(line)
            shown = False
    return "\n".join(kept) + "\n"


def same(one: str, other: str) -> bool:
    """Compare two blocks, times aside."""
    return VARIES.sub("#", one) == VARIES.sub("#", other)


def check_page(name: str, *, slow: bool) -> tuple[str, int]:
    """Run a page's blocks and read its excerpts; return the page as it should be, and how many parts were stale."""
    text = (ROOT / name).read_text(encoding="utf-8")
    stale: list[tuple[str, str]] = []
    for block in FENCE.findall(text):
        if SLOW.search(commands(block)[0]) and not slow:
            continue
        now = printed(block)
        if not same(block, now):
            stale.append((block, now))
    for _, path, body in EXCERPT.findall(text):
        now = excerpt(body, (ROOT / path).read_text(encoding="utf-8"))
        if body != now:
            stale.append((body, now))
    for old, now in stale:
        print(f"{name}: not what it is now:\n{old}--- now:\n{now}")
        text = text.replace(f"\n{old}```", f"\n{now}```")
    return text, len(stale)


def main() -> int:
    """Check or write; return 0 if all outputs are literal, 1 if one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="pages, from the root of the checkout; default: all")
    parser.add_argument("--write", action="store_true", help="write what the commands print now")
    parser.add_argument("--check", action="store_true", help="compare only; this is the default")
    parser.add_argument("--all", action="store_true", help="the slow blocks too")
    options = parser.parse_args()
    stale = 0
    for name in options.pages or PAGES:
        text, count = check_page(name, slow=options.all)
        stale += count
        if options.write:
            (ROOT / name).write_text(text, encoding="utf-8")
    return 1 if stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
