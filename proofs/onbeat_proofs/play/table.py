"""The step table: what every request got in every step."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from onbeat_proofs.play.history import PlayedStep

LEGEND = (
    "tokens, +n of them drafts; H held, P preempted, L loading; "
    "mode: t throttled, h holding, l hold lifted, p paused, s saturated afterwards"
)
NOTHING = "·"


def step_table(history: Sequence[PlayedStep]) -> Table:
    """Return a table with a column for each step and a row for each request that a step speaks of; see `LEGEND`."""
    table = Table(header_style="bold")
    table.add_column("step", no_wrap=True)
    for turn in history:
        table.add_column(str(turn.step.index), justify="right", no_wrap=True)
    table.add_row("mode", *(mode(turn) for turn in history), style="dim", end_section=True)
    for id in requests(history):
        table.add_row(Text(id), *(cell(turn, id) for turn in history))
    return table


def step_text(history: Sequence[PlayedStep]) -> str:
    """Return the same table as plain text, its legend below it."""
    rows = [["step", *(str(turn.step.index) for turn in history)], ["mode", *(mode(turn) for turn in history)]]
    rows += [[id, *(cell(turn, id) for turn in history)] for id in requests(history)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        padded = [text.rjust(width) for text, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *padded]).rstrip())
    return "\n".join([*lines, f"({LEGEND})"])


def requests(history: Sequence[PlayedStep]) -> list[str]:
    """The ids that steps speak of, in the order in which they do."""
    names: dict[str, None] = {}
    for turn in history:
        step = turn.step
        evicted = [eviction.victim for eviction in step.evictions]
        for ids in (step.scheduled, step.loading, turn.parked, step.held, evicted, turn.waiting):
            names.update(dict.fromkeys(ids))
    return list(names)


def mode(turn: PlayedStep) -> str:
    """The circumstances of a step, as letters; see `LEGEND`."""
    step = turn.step
    letters = ((step.throttle, "t"), (step.hold, "h"), (step.lifted, "l"), (not step.open, "p"), (step.saturated, "s"))
    return "".join(letter for holds, letter in letters if holds) or NOTHING


def cell(turn: PlayedStep, id: str) -> str:
    """What a step did with a request."""
    step = turn.step
    tokens, drafts = step.scheduled.get(id, 0), step.drafts.get(id, 0)
    text = "" if not tokens else f"{tokens - drafts}+{drafts}" if drafts else str(tokens)
    if any(eviction.victim == id for eviction in step.evictions):
        text += "P"
    if id in step.loading or id in turn.parked:
        text += "L"
    if id in step.held:
        text += "H"
    return text or NOTHING
