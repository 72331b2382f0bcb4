"""One HTML page: verdicts, and each finding with its scenario and its timeline. It loads nothing from anywhere."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from onbeat_proofs.audit.reports.lanes import WORDS, lanes
from onbeat_proofs.audit.reports.verdicts import CheckResult, Problem, checks_of, summary
from onbeat_proofs.audit.reports.version import version

if TYPE_CHECKING:
    from onbeat_proofs.audit.results import AuditReport, InvariantResult

QUESTIONS = {
    "policy": "Does it keep the policy text of its version?",
    "quality": "Which invariants does it violate?",
}
LOADS_NOTHING = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The page's content security policy."""
VERDICTS = ("violated", "undecided", "vacuous", "inherited", "holds")


def page(report: "AuditReport", now: datetime) -> str:
    """Return the page.

    Args:
        report: of one class.
        now: when the audit ended; with a time zone.
    """
    checks = checks_of(report)
    here = files("onbeat_proofs.audit.reports")
    style = (here / "page.css").read_text(encoding="utf-8")
    script = (here / "page.js").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{LOADS_NOTHING}">
<title>{escape(report.scheduler)} · onbeat audit</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#findings">Skip to the findings</a>
{"".join(_header(report, checks, now))}
<main>
{"".join(_verdicts(report, checks))}
{"".join(_findings(report, checks))}
</main>
<footer>Audited by Onbeat {escape(version())}. What was searched, and how far, is in the JSON report; a pass says that
nothing was found there.</footer>
<script>
{script}</script>
</body>
</html>
"""


# --- Header ----------------------------------------------------------------------------------------------------------


def _header(report: "AuditReport", checks: list[CheckResult], now: datetime) -> Iterator[str]:
    verdict = worst(checks)
    says = {
        "violated": "Something is violated",
        "undecided": "Not decided",
        "vacuous": "Not all of it was put to the test",
        "inherited": "Nothing but what it inherits is violated",
        "holds": "Every invariant holds",
    }
    facts = {
        "policy": report.policy,
        "budget": f"{report.budget}, seed {report.seed}",
        "took": f"{report.seconds:.1f} s",
        "date": now.strftime("%Y-%m-%d %H:%M %Z").strip(),
        **report.environment,
    }
    if report.source is not None:
        facts["file"] = f"{_below(Path(report.source.file))}:{report.source.line}"
    yield f'<header><p class="kind">onbeat audit</p><h1>{_breakable(report.scheduler)}</h1>'
    yield f'<p class="verdict {verdict}"><strong>{says[verdict]}.</strong> {escape(summary(report))}.</p><dl>'
    for name, value in facts.items():
        yield f"<div><dt>{escape(name)}</dt><dd>{_breakable(value)}</dd></div>"
    yield "</dl></header>"


def _below(file: Path) -> Path:
    """Return a path relative to the current folder, if it is below it."""
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def worst(checks: Iterable[CheckResult]) -> str:
    """Return the verdict of all checks together."""
    verdicts = {check.verdict for check in checks}
    return next((verdict for verdict in VERDICTS if verdict in verdicts), "undecided")


# --- Verdicts --------------------------------------------------------------------------------------------------------


def _verdicts(report: "AuditReport", checks: list[CheckResult]) -> Iterator[str]:
    rows = {row.invariant: row for row in report.rows}
    yield '<section aria-labelledby="verdicts"><h2 id="verdicts">Verdicts</h2>'
    yield '<div class="filters" role="group" aria-label="Show only">'
    for verdict in VERDICTS:
        count = sum(check.verdict == verdict for check in checks)
        if count:
            yield f'<button type="button" aria-pressed="true" data-verdict="{verdict}">'
            yield f'<span class="dot {verdict}"></span>{verdict} {count}</button>'
    yield "</div>"
    for question, heading in QUESTIONS.items():
        chosen = [check for check in checks if check.question == question]
        if chosen:
            yield '<div class="table" tabindex="0" role="region" aria-label="Verdict table"><table>'
            yield f'<caption>{heading}</caption><thead><tr><th scope="col">verdict</th><th scope="col">check</th>'
            yield '<th scope="col">put to the test</th></tr></thead><tbody>'
            for check in sorted(chosen, key=lambda check: VERDICTS.index(check.verdict)):
                yield _verdict(check, rows.get(check.id))
            yield "</tbody></table></div>"
    yield "</section>"


def _verdict(check: CheckResult, row: "InvariantResult | None") -> str:
    name = f'<a href="#{escape(_anchor(check))}">{escape(check.id)}</a>' if check.problems else escape(check.id)
    details = [f"{name} {count:,}" for name, count in row.counts.items()] if row is not None else []
    if row is not None and row.violations:
        details.append(f"{row.violations:,} violations")
    counts = check.reason or ", ".join(details)
    return (
        f'<tr data-verdict="{check.verdict}"><td><span class="tag {check.verdict}">{check.verdict}</span></td>'
        f'<th scope="row"><code>{name}</code><span class="statement">{escape(check.statement)}</span></th>'
        f'<td class="counts">{escape(counts)}</td></tr>\n'
    )


def _anchor(check: CheckResult) -> str:
    return f"finding-{check.id}"


# --- Findings --------------------------------------------------------------------------------------------------------


def _findings(report: "AuditReport", checks: list[CheckResult]) -> Iterator[str]:
    yield '<section aria-labelledby="findings"><h2 id="findings">Findings</h2>'
    violated = [check for check in checks if check.problems]
    if not violated:
        yield "<p>Nothing was found.</p>"
    elif any(problem.finding is not None for check in violated for problem in check.problems):
        yield _legend()
    for check in violated:
        yield f'<article id="{escape(_anchor(check))}"><h3><code>{escape(check.id)}</code></h3>'
        yield f'<p class="statement">{escape(check.statement)}</p>'
        for number, problem in enumerate(check.problems):
            yield from _problem(report, check, problem, number)
        yield "</article>"
    yield "</section>"


def _problem(report: "AuditReport", check: CheckResult, problem: Problem, number: int) -> Iterator[str]:
    finding = problem.finding
    if finding is None:
        yield f'<p class="said">{_breakable(problem.message)}</p>'
        return
    key = f"lanes-{check.id}-{number}"
    yield f'<p class="said"><strong>Step {finding.step}:</strong> {_breakable(finding.message)} '
    yield f'<span class="by">found by {escape(finding.check)}</span></p>'
    yield lanes(finding.timeline, finding.step, escape(key), f"What every request got: {check.id}")
    yield f"<details><summary>Step table</summary>{_text(finding.table, f'{key}-table', 'step table')}</details>"
    yield '<h4>Scenario</h4><p class="note">Replay it: <code>onbeat replay FILE.yaml --scheduler '
    yield f"{escape(report.scheduler)}</code></p>{_text(finding.yaml, f'{key}-yaml', 'scenario')}"
    if finding.pytest_file is not None:
        yield "<details><summary>The same as a pytest file</summary>"
        yield f"{_text(finding.pytest_file, f'{key}-pytest', 'pytest file')}</details>"


def _text(text: str, key: str, label: str) -> str:
    """Return a block of text, with a button that copies it."""
    return (
        f'<pre id="{escape(key)}" tabindex="0" role="region" aria-label="{label}">{escape(text)}</pre>'
        f'<button type="button" class="copy" data-copy="{escape(key)}" aria-label="Copy the {label}">Copy</button>'
    )


def _legend() -> str:
    items = [f'<li><span class="key {state}"></span>{words}</li>' for state, words in WORDS.items()]
    strips = {"throttle": "throttle flag", "hold": "holding", "lifted": "hold lifted", "saturated": "saturated"}
    items += [f'<li><span class="key strip {state}"></span>{words}</li>' for state, words in strips.items()]
    items.append('<li><span class="key finished"></span>finished</li>')
    return f'<ul class="legend" aria-label="Legend">{"".join(items)}</ul>'


def _breakable(text: str) -> str:
    """Escape a text, and let long names break after a colon, a dot, a slash or an underscore."""
    safe = escape(text)
    for mark in (":", ".", "/", "_"):
        safe = safe.replace(mark, f"{mark}<wbr>")
    return safe
