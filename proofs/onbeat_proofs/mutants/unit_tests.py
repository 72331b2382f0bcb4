"""The unit tests as checks for mutants: what speaks about one method and shows in no invariant."""

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from onbeat_proofs.mutants.checks import MutantCheck

FOLDERS = ("tests/spec", "tests/reference")


def unit_tests() -> Iterator[MutantCheck]:
    """Yield a check for each test file of the two packages that are changed; none where there is no checkout."""
    root = Path(__file__).resolve().parents[3]
    for folder in FOLDERS:
        for file in sorted((root / folder).glob("test_*.py")):
            yield MutantCheck(file.stem, partial(run_file, root, file))


def run_file(root: Path, file: Path) -> str | None:
    """Run a test file in this process, where the mutant is; return its first failure."""
    import pytest  # noqa: PLC0415  (late: a dependency of development only)

    output = io.StringIO()
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(root)]
    with redirect_stdout(output), redirect_stderr(output):
        code = pytest.main([*options, str(file)])
    if code == 0:
        return None
    failed = [line for line in output.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"pytest ended with {code}"
