"""A finding's run as inline SVG: a lane for each request, a column for each step.

The names stand in a drawing of their own to the left, so that they stay in sight while the steps scroll. Colours come
from the page's style sheet, by class; what a step did is also written in every cell, in the letters of the step table.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

CELL, LANE, STRIP, GAP = 30, 22, 13, 3
"""Pixels: width of a step, height of a lane and of a strip, space between cells."""
LETTER, LONGEST_NAME = 6.7, 17
"""Pixels of a letter of a name; letters shown of it."""
MOST_STEPS, STEPS_AFTER = 240, 8
"""Steps drawn up to the one that violates, and after it; of a longer run it is said what is left out."""

LETTERS = {"held": "H", "loading": "L", "preempted": "P", "waiting": "·", "running": "-"}
WORDS = {
    "prefill": "prefill, with its tokens",
    "decode": "decode, with its tokens",
    "held": "held by the throttle",
    "waiting": "waiting",
    "loading": "loading remote KV",
    "running": "running, got nothing",
    "preempted": "preempted",
}
"""The states, as the legend names them."""

Record = dict[str, Any]


def lanes(records: Sequence[Record], violating: int, key: str, title: str) -> str:
    """Return the drawing of a run.

    Args:
        records: of `onbeat_proofs.play.timeline`, one for each step.
        violating: index of the step that violates the invariant; marked if it is drawn.
        key: makes the ids of the drawing unique in its page.
        title: of the drawing, for readers who do not see it.
    """
    if not records:
        return '<p class="note">No step came to its end.</p>'
    upto = sum(record["step"] <= violating for record in records)
    drawn = records[max(0, upto - MOST_STEPS) : upto + STEPS_AFTER]
    note = ""
    if len(drawn) < len(records):
        note = f'<p class="note">Drawn: {len(drawn)} of the {len(records)} steps of the scenario.</p>'
    strips = _strips(drawn)
    ids = list(dict.fromkeys(id for record in drawn for id in record["requests"]))
    top = 34
    height = top + len(strips) * (STRIP + GAP) + 6 + len(ids) * (LANE + GAP)
    width = len(drawn) * (CELL + GAP) + GAP
    room = max(len(text) for text in (*map(_cut, ids), *(text for text, _ in strips))) * LETTER + 10
    names = [
        _name(text, room, top + at * (STRIP + GAP) + STRIP - 3, "strip-name") for at, (text, _) in enumerate(strips)
    ]
    first = top + len(strips) * (STRIP + GAP) + 6
    names += [_name(id, room, first + at * (LANE + GAP) + LANE - 7, "lane-name") for at, id in enumerate(ids)]
    body = [*_columns(drawn, violating, height)]
    for at, (_, cells) in enumerate(strips):
        body += _strip(cells, top + at * (STRIP + GAP))
    for at, id in enumerate(ids):
        body += _lane(drawn, id, first + at * (LANE + GAP))
    described = f"{key}-title {key}-desc"
    return f"""<div class="timeline">
<svg class="names" width="{room:.0f}" height="{height}" aria-hidden="true">{"".join(names)}</svg>
<div class="steps" tabindex="0" role="region" aria-label="Timeline of {len(drawn)} steps, scrolls sideways">
<svg width="{width}" height="{height}" role="img" aria-labelledby="{described}">
<title id="{key}-title">{escape(title)}</title>
<desc id="{key}-desc">{escape(_described(drawn, ids, violating))}</desc>
{"".join(body)}
</svg></div></div>{note}"""


def _strips(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    """Return the strips above the lanes: name, and for each step the class of its mark; empty: none."""
    throttle = [_throttled(record) for record in records]
    strips = [("throttle", throttle), ("saturated", ["saturated" if r["saturated"] else "" for r in records])]
    if not all(record["open"] for record in records):
        strips.append(("paused", ["" if record["open"] else "paused" for record in records]))
    return strips


def _throttled(record: Record) -> str:
    if record["lifted"]:
        return "lifted"
    return "hold" if record["hold"] else "throttle" if record["throttle"] else ""


def _strip(cells: Sequence[str], y: int) -> list[str]:
    return [
        f'<rect class="{mark or "off"}" x="{GAP + at * (CELL + GAP)}" y="{y}" width="{CELL}" height="{STRIP}" rx="2"/>'
        for at, mark in enumerate(cells)
    ]


def _columns(records: Sequence[Record], violating: int, height: int) -> list[str]:
    """Draw the numbers of the steps, and the mark of the one that violates."""
    drawn = []
    for at, record in enumerate(records):
        x, index = GAP + at * (CELL + GAP), record["step"]
        if index == violating:
            drawn.append(f'<rect class="violating" x="{x - 2}" y="2" width="{CELL + 4}" height="{height - 3}" rx="4"/>')
            drawn.append(f'<text class="mark" x="{x + CELL / 2}" y="14">✕</text>')
        drawn.append(f'<text class="number" x="{x + CELL / 2}" y="28">{index}</text>')
    return drawn


def _lane(records: Sequence[Record], id: str, y: int) -> list[str]:
    drawn = []
    for at, record in enumerate(records):
        cell = record["requests"].get(id)
        if cell is None:
            continue
        x, state = GAP + at * (CELL + GAP), cell["state"]
        title = escape(f"step {record['step']}, {id}: {_said(cell)}")
        if state == "finished":
            drawn.append(f'<circle class="finished" cx="{x + CELL / 2}" cy="{y + LANE / 2}" r="1.5"/>')
            continue
        drawn.append(
            f'<g><title>{title}</title><rect class="{state}" x="{x}" y="{y}" width="{CELL}" height="{LANE}" rx="3"/>'
        )
        if cell["preempted"] and state != "preempted":
            drawn.append(f'<path class="evicted" d="M{x + CELL - 9} {y}h9v9z"/>')
        text = _tokens(cell) if cell["tokens"] else LETTERS.get(state, "")
        small = " small" if len(text) > 4 else ""
        drawn.append(f'<text class="in {state}{small}" x="{x + CELL / 2}" y="{y + LANE - 7}">{text}</text></g>')
    return drawn


def _name(text: str, room: float, y: int, kind: str) -> str:
    return f'<text class="{kind}" x="{room - 7:.0f}" y="{y}">{escape(_cut(text))}<title>{escape(text)}</title></text>'


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:10]}…{name[-6:]}"


def _tokens(cell: Record) -> str:
    """Write a number of tokens in the width of a cell: drafts after a plus, thousands as k."""
    drafts, own = cell["drafts"], cell["tokens"] - cell["drafts"]
    return f"{_short(own)}+{_short(drafts)}" if drafts else _short(own)


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count // 1000}k"


def _said(cell: Record) -> str:
    """What a step did with a request, in words."""
    state, tokens, drafts = str(cell["state"]), cell["tokens"], cell["drafts"]
    words = {"running": "running, got nothing", "loading": "loading remote KV"}.get(state, state)
    if tokens:
        words += f", {tokens} token{'s' if tokens > 1 else ''}"
    if drafts:
        words += f", {drafts} of them drafts"
    return f"{words}, preempted in the same step" if cell["preempted"] and state != "preempted" else words


def _described(records: Sequence[Record], ids: Sequence[str], violating: int) -> str:
    """Say the drawing in words: the violating step whole, the others as the step table has them."""
    at = next((record for record in records if record["step"] == violating), None)
    text = f"{len(ids)} request{'s' if len(ids) != 1 else ''} over steps {records[0]['step']} to {records[-1]['step']}."
    if at is None:
        return text
    cells = "; ".join(f"{id} {_said(cell)}" for id, cell in at["requests"].items())
    return f"{text} Step {violating}, which violates the invariant: {cells or 'no request'}."
