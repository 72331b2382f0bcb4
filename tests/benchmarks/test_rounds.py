"""The rounds of kills and hangs, a few of them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = "from benchmarks import rounds; rounds.HANG_EVERY = 2; rounds.main(['--rounds', '2'])"


def test_a_few_rounds() -> None:
    """In a process of its own: the benchmark counts the descriptors of its process, not those of other tests."""
    command = [sys.executable, "-c", SCRIPT]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "left behind: 0 processes, 0 file descriptors" in run.stdout
