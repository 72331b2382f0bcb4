"""Keep the outputs in README.md and docs/ literal.

    python tools/readme.py --check          # compare the quick blocks with what their commands print now
    python tools/readme.py --write [--all]  # run them and write what they print; with --all the slow ones too

A block is a fence whose lines that begin with `$ ` are commands, each followed by its output. All commands of a block
run in one shell, in the root of the checkout, with this interpreter's programs first in the path. Times and rates vary
from run to run and are left out of the comparison.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from shlex import quote

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md",)
SLOW = re.compile(r"^(make|(OMP_NUM_THREADS=1 )?onbeat (prove|demo|serve)|\.vllm/)")
"""Commands that take more than seconds."""
FENCE = re.compile(r"^```\n(\$ .*?)^```$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"[\d.,]+ (?:m?s\b|steps/s)|\([\d,]+/s\)|\d+T\d+-\d+-[0-9a-f]+")
MARK = "\x1e"


def commands(block: str) -> list[str]:
    """Return the commands of a block, continuation lines joined to the line that they continue."""
    found: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif found and found[-1].endswith("\\"):
            found[-1] += "\n" + line
    return found


def printed(block: str) -> str:
    """Run a block; return it with the outputs that its commands have now."""
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


def same(one: str, other: str) -> bool:
    """Compare two blocks, times aside."""
    return VARIES.sub("#", one) == VARIES.sub("#", other)


def main() -> int:
    """Check or write; return 0 if all outputs are literal, 1 if one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write what the commands print now")
    parser.add_argument("--check", action="store_true", help="compare only; this is the default")
    parser.add_argument("--all", action="store_true", help="the slow blocks too")
    options = parser.parse_args()
    stale = 0
    for name in PAGES:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        for block in FENCE.findall(text):
            if SLOW.search(commands(block)[0]) and not options.all:
                continue
            now = printed(block)
            if same(block, now):
                continue
            stale += 1
            print(f"{name}: not what it prints now:\n{block}--- now:\n{now}")
            text = text.replace(f"```\n{block}```", f"```\n{now}```")
        if options.write:
            page.write_text(text, encoding="utf-8")
    return 1 if stale and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
