"""The report files that `onbeat audit` is asked for: checked before it starts, written when it has ended."""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onbeat_proofs.audit.reports.html import page
from onbeat_proofs.audit.reports.junit import junit
from onbeat_proofs.audit.reports.sarif import sarif
from onbeat_spec.errors import OnbeatError

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = {
    "json": "Write the results to FILE.",
    "junit": "Write them as JUnit XML, a test case for each invariant.",
    "sarif": "Write them as SARIF 2.1.0, for code-scanning viewers.",
    "html": "Write them as one HTML page, with the timeline of each finding.",
}


def options(command: F) -> F:
    """Add an option for each format to a click command, which gets them as `json_file`, `junit_file` and so on."""
    for name, help in reversed(FORMATS.items()):
        file = click.option(f"--{name}", f"{name}_file", metavar="FILE", type=click.Path(dir_okay=False), help=help)
        command = file(command)
    return command


class ReportFiles:
    """The files asked for.

    Args:
        formats: for each format, its file; None: not asked for.

    Raises:
        OnbeatError: two formats share a file, or a file cannot be written.
    """

    def __init__(self, formats: Mapping[str, str | None]) -> None:
        self.files = {name: Path(file) for name, file in formats.items() if file is not None}
        owners: dict[Path, str] = {}
        for name, file in self.files.items():
            other = owners.setdefault(file.resolve(), name)
            if other != name:
                raise OnbeatError(f"--{other} and --{name} both name {file}; give each a file of its own")
            _require_writable(name, file)

    def write(self, report: "AuditReport") -> None:
        """Write every file.

        Raises:
            OnbeatError: a file cannot be written any more.
        """
        now = datetime.now(UTC)
        for name, file in self.files.items():
            try:
                file.write_text(render(name, report, now), encoding="utf-8", errors="backslashreplace")
            except OSError as error:
                raise _refused(name, file, error) from None


def render(name: str, report: "AuditReport", now: datetime) -> str:
    """Return a report in one of the `FORMATS`, as text."""
    match name:
        case "json":
            return json.dumps(report.as_json(), indent=2) + "\n"
        case "junit":
            return junit(report, now)
        case "sarif":
            return json.dumps(sarif(report, now), indent=2) + "\n"
        case "html":
            return page(report, now)
    raise ValueError(name)


def _require_writable(name: str, file: Path) -> None:
    """Open a file for writing, and leave it as it was."""
    existed = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
        if not existed:
            file.unlink()
    except OSError as error:
        raise _refused(name, file, error) from None


def _refused(name: str, file: Path, error: OSError) -> OnbeatError:
    return OnbeatError(f"--{name}: {file} cannot be written: {error.strerror or error}; name another file")
