"""What a check came to, with the smallest run that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onbeat_proofs.delayer.decision import Decision
from onbeat_proofs.delayer.graph import Rows, step

HOLDS, VIOLATED, VACUOUS, UNDECIDED = "holds", "violated", "vacuous", "undecided"

STATEMENTS = {
    "held-at-most": "no rank's prefill is refused in more passes in a row than the stated bound",
    "no-empty-step": "a refusal never leaves the whole group without work, with no decode to run",
    "phase-agrees": "all ranks decide the same in the same pass",
    "no-latched-state": "once all work is done the group behaves as at its start: no flag outlives its cause",
    "bounded-delay": "from every reachable state, whatever the rows, a rank that wants to prefill may do so eventually",
    "no-crash": "every pass gets a decision",
    "estimate-fades": "the estimate of the largest prefill batch depends on recent passes only",
    "gap-keeps-wait": "decode-only passes in between do not restart a wait for ever",
    "decode-gets-pass": "prefill passes do not displace a rank's decodes for ever",
}
"""What each check says. The last two are asked for by `--extra`."""


@dataclass(frozen=True, slots=True)
class ShownPass:
    """One pass of a run: the rows, the verdicts, and each rank's state after it, as text."""

    rows: Rows
    allow: tuple[bool, ...]
    state: list[str]


@dataclass(frozen=True, slots=True)
class DelayerRun:
    """A run that shows a violation.

    Attributes:
        initial: each rank's state before it, as text.
        turns: the passes.
        loop: the passes from this one on repeat for ever; None: they do not.
        failed: rows of a last pass that got no answer.
    """

    initial: list[str]
    turns: tuple[ShownPass, ...]
    loop: int | None = None
    failed: Rows | None = None


@dataclass(frozen=True, slots=True)
class DelayerResult:
    """The verdict of one check on a group of so many ranks.

    Attributes:
        strength: `exhaustive` (all states, all rows of the alphabet) or `for all values` (of every int of a row).
        detail: one sentence.
    """

    check: str
    ranks: int
    verdict: str
    strength: str
    detail: str
    run: DelayerRun | None = None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        document: dict[str, Any] = {
            "check": self.check,
            "statement": STATEMENTS[self.check],
            "ranks": self.ranks,
            "verdict": self.verdict,
            "strength": self.strength,
            "detail": self.detail,
        }
        if self.run is not None:
            run = self.run
            document["run"] = {
                "initial": run.initial,
                "passes": [
                    {"rows": [row._asdict() for row in turn.rows], "allow": list(turn.allow), "state": turn.state}
                    for turn in run.turns
                ],
                "loop": run.loop,
                "failed": None if run.failed is None else [row._asdict() for row in run.failed],
            }
        return document


def rerun(
    decision: Decision, runs: Sequence[Rows], *, loop: int | None = None, failed: Rows | None = None
) -> DelayerRun:
    """Run rows from the initial state, to be shown. Raises Misstep."""
    state = decision.initial()
    initial, turns = decision.show(state), []
    for rows in runs:
        outcome = step(decision, state, rows)
        state = outcome.state
        turns.append(ShownPass(rows, outcome.allow, decision.show(state)))
    return DelayerRun(initial, tuple(turns), loop, failed)


def lines(run: DelayerRun) -> list[str]:
    """Return a run as a table: a line for each pass, a column for each rank."""
    ranks = len(run.initial)
    head = ["pass", *[f"rank {rank}" for rank in range(ranks)], "state"]
    body = [["", *[""] * ranks, _states(run.initial)]]
    for number, turn in enumerate(run.turns):
        mark = f"{number}" + ("*" if run.loop is not None and number >= run.loop else "")
        cells = [f"{_row(row)} {_verdict(row.prefillable, ok)}" for row, ok in zip(turn.rows, turn.allow, strict=True)]
        body.append([mark, *cells, _states(turn.state)])
    if run.failed is not None:
        body.append([str(len(run.turns)), *[f"{_row(row)} ?" for row in run.failed], "failed"])
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in [head, *body]]
    tail = ["* repeats for ever"] if run.loop is not None else []
    return [*[line.rstrip() for line in table], *tail]


def _row(row: Any) -> str:
    if not any(row):
        return "idle"
    letters = f"{'p ' if row.prefillable else ''}r{row.running}"
    letters += f" b{row.prefill_bs} q{row.waiting}" if row.prefillable else ""
    return letters + (" u" if row.low_usage else "") + (" l" if row.late else "")


def _verdict(wants_prefill: bool, allow: bool) -> str:
    sign = "+" if allow else "-"
    return sign if wants_prefill else f"({sign})"


def _states(states: list[str]) -> str:
    return states[0] if len(set(states)) == 1 else " | ".join(states)
