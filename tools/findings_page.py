"""docs/findings.md, from what audits left: `write` reads nothing but that, and `findings_notes.py`."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onbeat_proofs.play.keeps_text import RULES
from tools.findings_notes import JUDGEMENTS, NOT_SHOWN, SEEN
from tools.findings_shown import Shown, number, shown_by, table
from tools.findings_targets import Target
from tools.findings_third import third_party

Results = Mapping[str, Any]
"""For each label what is kept of its audit."""
UNKNOWN = "undecided"
HEAD = """\
# Findings

The results of `onbeat audit` on vLLM's own schedulers, and on schedulers of packages that derive from them. `make
findings` writes this page and the files in [findings/](findings). The judgements come from
[tools/findings_notes.py](../tools/findings_notes.py), everything else from the results of the audits.

{runs}

## How to read it

The audit asks two questions about a class. *Does it keep the policy text of its vLLM release?* The requests that a
throttled step holds, the end of the scan of the waiting list, and the steps that write the saturation flag are
compared with the text of that release. *Which invariants does it violate?* This concerns the text itself and the loop
around it. A stock class that keeps its text can violate an invariant; then the text violates it.

The invariants are Onbeat's; a violation need not be a bug. Each finding says whether upstream intends it, and by which
decision, as far as the code and its pull requests show.

- **violated**: a run shows it. The smallest run found is given; it was run again after it was shrunk.
- not seen: the class violates the invariant in other ways, but the audit did not see it violated in this way.
- holds: no violation, and the premise was met; within the budget, not for all sequences.
- vacuous: the premise was never met, so nothing was tested.

Two values in one cell are those of `Scheduler` and of `AsyncScheduler`. Every finding has a scenario file, for
`onbeat replay FILE --scheduler MODULE:CLASS`. If the last step's tokens or flag show the violation, it has a pytest
file that needs only vLLM: `pytest docs/findings/test_NAME.py` fails where the invariant is violated.
`make vllm-env VERSION=0.33.0` makes an environment. `make findings` audits the classes without results in
`.vllm/findings` and writes this page again; `make findings FINDINGS='--only vllm-0.33.0-sync --again'` audits one
class again.
"""


def write(docs: Path, targets: Sequence[Target], results: Results) -> Iterator[Path]:
    """Write the document and what it links to.

    Args:
        docs: the folder.
        targets: all classes, in the order in which they are shown.
        known: for each label that was audited, its results; others are left out.

    Yields:
        Each file.
    """
    stock = [target for target in targets if target.stock and target.budget != "quick" and target.label in results]
    shown = shown_by(stock, results)
    folder = docs / "findings"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for fault in shown:
        yield from fault.files(folder)
    lines = [
        HEAD.format(runs=_runs(stock, results)),
        *_known_before(shown),
        *_policy(stock, results),
        *_overview(shown, stock, results),
        *(line for fault in shown for line in _finding(fault)),
        *_invariants(stock, results),
        *third_party(targets, results),
    ]
    page = docs / "findings.md"
    page.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    yield page


def _runs(stock: Sequence[Target], results: Results) -> str:
    dates = sorted({results[target.label]["date"] for target in stock})
    budgets = sorted({results[target.label]["budget"] for target in stock})
    python = sorted({results[t.label]["report"]["environment"].get("python", "") for t in stock if _ran(results, t)})
    when = dates[0] if len(set(dates)) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "never"
    return (
        f"Audited on {when}: vLLM {', '.join(_versions(stock))}, Python {', '.join(python)}, "
        f"budget {' and '.join(budgets)}, seed 0, no GPU."
    )


def _versions(stock: Sequence[Target]) -> list[str]:
    return sorted({target.vllm for target in stock}, key=number)


def _ran(results: Results, target: Target) -> bool:
    return target.label in results and results[target.label]["report"] is not None


def _cells(stock: Sequence[Target], results: Results, value: Any) -> Iterator[str]:
    """Yield a cell for each version: the value of the synchronous class and of the other, once if they agree."""
    for version in _versions(stock):
        pair = [target for target in stock if target.vllm == version]
        values = [
            value(target) if _ran(results, target) else "not run"
            for target in sorted(pair, key=lambda target: target.asynchronous)
        ]
        yield " / ".join(dict.fromkeys(values))


def _verdicts(results: Results, target: Target) -> dict[str, str]:
    return {row["invariant"]: row["verdict"] for row in results[target.label]["report"]["invariants"]}


def _strong(verdict: str) -> str:
    return f"**{verdict}**" if verdict == "violated" else verdict


# --- The sections ----------------------------------------------------------------------------------------------------


def _known_before(shown: Sequence[Shown]) -> Iterator[str]:
    yield "## Faults known before"
    yield ""
    yield "Six faults were known before the audit, from reading code and experiments. What the audit finds by itself:"
    yield ""
    rows = []
    for place, (versions, description) in SEEN.items():
        faults = [fault for fault in shown if fault.note is not None and fault.note.seen == place]
        where = "; ".join(f"[{fault.name}](#{fault.name}): {', '.join(fault.labels)}" for fault in faults)
        rows.append([str(place), description, versions, where or "not shown"])
    yield from table(("", "fault", "known in", "found by the audit as"), rows)
    for place, why in NOT_SHOWN.items():
        if not any(fault.note is not None and fault.note.seen == place for fault in shown):
            yield f"Why {place} is not shown: {why}"
            yield ""


def _policy(stock: Sequence[Target], results: Results) -> Iterator[str]:
    yield "## Do they keep their policy text?"
    yield ""
    rows = [
        [
            f"`{id}`",
            statement,
            *_cells(stock, results, lambda target, id=id: _strong(_verdicts(results, target).get(id, UNKNOWN))),
        ]
        for id, (statement, _) in RULES.items()
    ]
    yield from table(("", "statement", *_versions(stock)), rows)


def _overview(shown: Sequence[Shown], stock: Sequence[Target], results: Results) -> Iterator[str]:
    yield "## Which invariants do they violate?"
    yield ""

    def value(fault: Shown, target: Target) -> str:
        return _strong(fault.verdict(target, _verdicts(results, target)))

    for judgement, heading in (*JUDGEMENTS.items(), ("", "Not judged yet")):
        mine = [fault for fault in shown if fault.judgement == judgement]
        if mine:
            yield f"**{heading}**"
            yield ""
            rows = [
                [
                    f"[{fault.name}](#{fault.name})",
                    fault.sentence,
                    ", ".join(f"`{id}`" for id in fault.invariants),
                    *_cells(stock, results, lambda target, fault=fault: value(fault, target)),
                ]
                for fault in mine
            ]
            yield from table(("finding", "description", "invariants", *_versions(stock)), rows)


def _finding(fault: Shown) -> Iterator[str]:
    finding = fault.smallest
    yield f"### {fault.name}"
    yield ""
    yield fault.sentence
    yield ""
    judged = JUDGEMENTS.get(fault.judgement, "Not judged yet")  # type: ignore[call-overload]  # "" is no judgement
    yield f"{judged}.{' ' + fault.note.why if fault.note is not None and fault.note.why else ''}"
    yield ""
    yield f"Violates {', '.join(f'`{id}`' for id in fault.invariants)}. The smallest run, on {fault.where}:"
    yield ""
    yield f"    {finding['message']}"
    yield ""
    yield "```yaml"
    yield fault.scenario_file.rstrip()
    yield "```"
    yield ""
    yield "```"
    yield finding["table"].rstrip() or "no step ended"
    yield "```"
    yield ""
    links = ", ".join(f"[{name}](findings/{name})" for name in fault.file_names)
    yield f"Files: {links}. The audit's messages:"
    yield ""
    yield from (f"- `{invariant}`: {message} ({', '.join(labels)})" for invariant, message, labels in fault.messages)
    yield ""


def _invariants(stock: Sequence[Target], results: Results) -> Iterator[str]:
    yield "## Every invariant"
    yield ""
    yield "The verdicts on each invariant, in any way. `load-bounded` is left out: loads in vLLM have no deadline."
    yield ""
    statements: dict[str, str] = {}
    for target in stock:
        if _ran(results, target):
            for row in results[target.label]["report"]["invariants"]:
                statements.setdefault(row["invariant"], row["statement"])
    rows = [
        [
            f"`{id}`",
            statement,
            *_cells(stock, results, lambda target, id=id: _strong(_verdicts(results, target).get(id, "not asked"))),
        ]
        for id, statement in statements.items()
        if id not in RULES
    ]
    yield from table(("invariant", "statement", *_versions(stock)), rows)
