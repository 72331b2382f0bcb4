"""Findings as files."""

from copy import deepcopy
from pathlib import Path

import pytest

from onbeat.program import run
from onbeat_proofs.audit.reports.folder import require_folder, write_findings
from onbeat_proofs.scenarios.files import load_path
from onbeat_spec.errors import OnbeatError
from tests.proofs.audit.reports.examples import half_allocation


def test_each_finding_is_a_scenario_and_maybe_a_test(tmp_path: Path) -> None:
    report = deepcopy(half_allocation())  # it is shared with other tests
    report.findings[0].pytest_file = "def test_it(): ...\n"
    report.findings.append(report.findings[0])
    written = [file.name for file in write_findings(tmp_path, report)]
    id = report.findings[0].invariant
    name = id.replace("-", "_")
    assert written == [f"{id}-1.yaml", f"test_{name}_1.py", f"{id}-2.yaml", f"test_{name}_2.py"]
    assert load_path(tmp_path / f"{id}-1.yaml") == [report.findings[0].scenario]


def test_what_is_no_folder_is_told_before_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert run(["audit", "onbeat_reference:Scheduler", "--findings", str(file)]) == 2
    assert "--findings: " in capsys.readouterr().err


def test_a_folder_is_made(tmp_path: Path) -> None:
    require_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "c").touch()
    with pytest.raises(OnbeatError, match="cannot be a folder to write to"):
        require_folder(tmp_path / "c")
