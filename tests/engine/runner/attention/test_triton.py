"""Runs `kernel_checks.py` in Triton's interpreter, and has each of its checks as a test here."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

CHECKS = Path(__file__).with_name("kernel_checks.py")
ROOT = CHECKS.parents[4]


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (Linux on x86-64 only)")
def test_kernels_in_the_interpreter(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(CHECKS)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    assert int(suite.attrib["tests"]) >= 19
    assert suite.attrib["skipped"] == suite.attrib["failures"] == suite.attrib["errors"] == "0"
