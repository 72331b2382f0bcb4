"""The section on packages that derive from vLLM's schedulers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onbeat_proofs.play.keeps_text import RULES
from tools.findings_shown import table
from tools.findings_targets import Target
from tools.vllm_env import ROOT

ROOT_TEXT = f"{ROOT}/"
"""Taken out of messages that name a file."""
INTRODUCTION = """\
## Schedulers of other packages

Each package was audited with one vLLM release, at quick budget. *Inherited* violations are those of vLLM's own class
in the same run; they are listed above and are not caused by the package. A prefill delayer is no scheduler; the
results for SGLang's are in [delayer.md](delayer.md).
"""


def third_party(targets: Sequence[Target], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the section."""
    mine = [target for target in targets if not target.stock and target.label in results]
    if not mine:
        return
    yield INTRODUCTION
    rows = [
        [
            f"[{target.label}](#{target.label.replace('.', '')})",
            target.distribution.replace("==", " "),
            f"`{target.cls.rpartition(':')[2]}`",
            target.vllm,
            *_verdicts(results[target.label]),
        ]
        for target in mine
    ]
    head = ("", "package", "class", "vLLM", "before running", "keeps its vLLM's text", "of its own", "inherited")
    yield from table(head, rows)
    for target in mine:
        yield from _section(target, results[target.label])


def _verdicts(result: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return four cells: the static part, the policy, violations of its own, and inherited ones."""
    report = result["report"]
    if report is None:
        return ("not driven",) * 4
    faults = [misfit for misfit in report["signature"] if not misfit["warning"]]
    before = f"**{len(faults)} misfit{'s' if len(faults) > 1 else ''}**" if faults else "fits"
    verdicts = {row["invariant"]: row["verdict"] for row in report["invariants"]}
    if any(misfit["fatal"] for misfit in faults):
        return before, "not asked", "not asked", "not asked"
    text = {verdicts[id] for id in RULES if id in verdicts}
    kept = next((word for word in ("violated", "undecided", "vacuous", "holds") if word in text), "not asked")
    own = [id for id, verdict in verdicts.items() if verdict == "violated" and id not in RULES]
    inherited = [id for id, verdict in verdicts.items() if verdict == "inherited"]
    return (
        before,
        {"holds": "yes", "violated": "**no**"}.get(kept, kept),
        ", ".join(f"`{id}`" for id in own) or "nothing",
        f"{len(inherited)} invariant{'s' if len(inherited) > 1 else ''}" if inherited else "nothing",
    )


def _section(target: Target, result: Mapping[str, Any]) -> Iterator[str]:
    report = result["report"]
    yield f"### {target.label}"
    yield ""
    yield f"`{target.cls}` of {target.distribution} with vLLM {target.vllm}, {result['date']}."
    if target.needs:
        yield f"To drive it: {target.needs}."
    yield ""
    if target.note:
        yield target.note
        yield ""
    if report is None:
        yield f"It cannot be driven here: `{str(result['error']).replace(ROOT_TEXT, '')}`"
        yield ""
        return
    for misfit in report["signature"]:
        kind = "Warning" if misfit["warning"] else "Misfit"
        yield f"- {kind}, `{misfit['where']}`: {misfit['message']}"
    if report["signature"]:
        yield ""
    for verdict in ("vacuous", "inherited", "undecided"):
        ids = [f"`{row['invariant']}`" for row in report["invariants"] if row["verdict"] == verdict]
        if ids and not any(misfit["fatal"] for misfit in report["signature"]):
            yield f"{verdict.capitalize()}: {', '.join(ids)}."
            yield ""
    yield from _findings(report["findings"])


def _findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the first run of each invariant whole, of further ones the message."""
    shown = set[str]()
    for finding in findings:
        also = f" (the same run violates {', '.join(finding['also'])})" if finding["also"] else ""
        yield f"**`{finding['invariant']}`**: {finding['message'].replace(ROOT_TEXT, '')}{also}"
        yield ""
        if finding["invariant"] not in shown:
            shown.add(finding["invariant"])
            yield "```"
            yield finding["scenario"].rstrip().replace(ROOT_TEXT, "")
            if finding["table"]:
                yield ""
                yield finding["table"].rstrip()
            yield "```"
            yield ""
