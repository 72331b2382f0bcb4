"""The report files of `onbeat audit`: refused before it starts, or written whatever it finds."""

import json
from pathlib import Path
from xml.etree.ElementTree import parse

import pytest

from onbeat.program import run
from onbeat_proofs.audit import job
from onbeat_proofs.audit.reports.outputs import FORMATS, ReportFiles, render
from onbeat_proofs.audit.results import AuditReport
from onbeat_spec.errors import OnbeatError
from tests.proofs.audit.reports.examples import NOW, everything, half_allocation


@pytest.fixture
def no_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that must not start."""

    def start(*args: object, **kwargs: object) -> AuditReport:
        raise AssertionError("the audit was started")

    monkeypatch.setattr(job, "audit_apart", start)


def test_the_verb_writes_every_format_also_of_a_class_that_violates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "audit_apart", lambda *args, **kwargs: half_allocation())
    files = {name: tmp_path / f"report.{name}" for name in FORMATS}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    assert run(["audit", "tests.proofs.audit.broken:HalfAllocation", *options]) == 1
    assert "VIOLATED  all-or-nothing" in capsys.readouterr().out
    assert json.loads(files["json"].read_text())["findings"][0]["timeline"]
    assert parse(files["junit"]).getroot().attrib["failures"] == "1"
    assert len(json.loads(files["sarif"].read_text())["runs"][0]["results"]) == 1
    assert files["html"].read_text().startswith("<!doctype html>")


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize("name", FORMATS)
def test_an_unwritable_file_is_told_before_the_audit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere" / "report"
    assert run(["audit", "onbeat_reference:Scheduler", f"--{name}", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"onbeat: error: --{name}: {file} cannot be written: No such file or directory; name another file\n"
    )


@pytest.mark.usefixtures("no_audit")
def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "onbeat_reference:Scheduler", "--html", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err


def test_two_formats_do_not_share_a_file(tmp_path: Path) -> None:
    file = tmp_path / "report"
    with pytest.raises(OnbeatError, match=r"--json and --html both name .*report; give each a file of its own"):
        ReportFiles({"json": str(file), "html": f"{tmp_path}/./report"})


def test_asking_leaves_no_file_behind_and_keeps_an_old_one(tmp_path: Path) -> None:
    old = tmp_path / "old.xml"
    old.write_text("old")
    ReportFiles({"junit": str(old), "json": str(tmp_path / "new.json"), "html": None})
    assert old.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["old.xml"]


def test_a_folder_that_goes_away_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    outputs = ReportFiles({"json": str(folder / "report.json")})
    folder.rmdir()
    with pytest.raises(OnbeatError, match=r"--json: .* cannot be written: No such file"):
        outputs.write(everything())


@pytest.mark.parametrize("name", FORMATS)
def test_lone_surrogates_are_written_too(name: str, tmp_path: Path) -> None:
    ReportFiles({name: str(tmp_path / "report")}).write(everything())
    assert (tmp_path / "report").stat().st_size > 100


def test_an_unknown_format() -> None:
    with pytest.raises(ValueError, match="pdf"):
        render("pdf", everything(), NOW)
