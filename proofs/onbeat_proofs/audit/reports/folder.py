"""Findings as files: a scenario each, and a pytest file where there is one."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from onbeat_spec.errors import OnbeatError

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport


def require_folder(folder: Path) -> None:
    """Make a folder, or see that it is one.

    Raises:
        OnbeatError: it cannot be made, or is something else.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OnbeatError(
            f"--findings: {folder} cannot be a folder to write to: {error.strerror or error}; name another one"
        ) from None


def write_findings(folder: Path, report: "AuditReport") -> list[Path]:
    """Write `resume-bypasses-1.yaml` and, where there is one, `test_resume_bypasses_1.py`, for each finding.

    Returns:
        The files, in the order of the findings.

    Raises:
        OnbeatError: a file cannot be written.
    """
    counts: Counter[str] = Counter()
    written: list[Path] = []
    for finding in report.findings:
        counts[finding.invariant] += 1
        name = f"{finding.invariant}-{counts[finding.invariant]}"
        # Together the files are a suite, in which no name may come twice.
        number = counts[finding.invariant]
        unique = finding.scenario.name if number == 1 else f"{finding.scenario.name}, {number}"
        renamed = replace(finding, scenario=replace(finding.scenario, name=unique))
        files = {folder / f"{name}.yaml": renamed.yaml}
        if finding.pytest_file is not None:
            files[folder / f"test_{name.replace('-', '_')}.py"] = finding.pytest_file
        for file, text in files.items():
            try:
                file.write_text(text, encoding="utf-8")
            except OSError as error:
                raise OnbeatError(f"--findings: {file} cannot be written: {error.strerror or error}") from None
            written.append(file)
    return written
