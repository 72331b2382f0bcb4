"""How the process of a rank ends."""

import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from onbeat_engine.rank import process

class Kept:
    def __del__(self):
        print("torn down")

def main():
    atexit.register(print, "somebody's hook")
    {}

kept = Kept()
process.main = main
process.run()
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("return 0", 0, "somebody's hook\n"),
        ("return 3", 3, "somebody's hook\n"),
        ("sys.exit(2)", 2, "somebody's hook\ntorn down\n"),
    ],
)
def test_it_ends_at_once_with_its_exit_code(end: str, code: int, said: str) -> None:
    """Whoever wants to be called at the end is, and the rest of Python's way out is skipped."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(end)],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": path()},
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def path() -> str:
    return ":".join(entry for entry in sys.path if entry)
