"""Lanes as one HTML page that loads nothing from anywhere; with `live`, it asks that address for news."""

import json
from html import escape
from importlib.resources import files
from typing import Any

from onbeat_engine.lanes.summary import Summary, cadence, headline, milliseconds, percent, summarize
from onbeat_engine.wire.lane_steps import WHYS, Lanes, LaneStep, Why

SHOWN = ("prefill", "mixed", "decode", "held", "dummy", "exchange", "empty")
"""Kinds as drawn, in the order of the page's script."""
LEGEND = {
    "prefill": "prefill (P)",
    "mixed": "prefill and decode (M)",
    "decode": "decode",
    "held": "decode, prefills held back (H)",
    "dummy": "dummy, no tokens of its own",
    "exchange": "exchange",
    "beat": "a beat",
    "off": "prefill off the beat",
}


def payload(lanes: Lanes) -> dict[str, Any]:
    """Return what the page draws, as values of JSON: what the address given as `live` has to answer."""
    summary = summarize(lanes)
    whys: dict[Why, int] = {}
    ranks = [
        {"rank": rank, "steps": [_packed(step, whys) for step in steps]} for rank, steps in sorted(lanes.steps.items())
    ]
    return {
        "interval": lanes.interval,
        "lockStep": lanes.lock_step,
        "ranks": ranks,
        "whys": [f"{why}: {WHYS[why]}" for why in whys],
        "texts": {
            "headline": _sentence(headline(summary)),
            **{f"tile-{at}": t[1] for at, t in enumerate(_tiles(summary))},
        },
    }


def _packed(step: LaneStep, whys: dict[Why, int]) -> list[int]:
    duration = -1 if step.duration is None else round(step.duration * 1e6)
    why = whys.setdefault(step.why, len(whys)) if step.why else -1
    return [
        step.number,
        SHOWN.index(step.shown),
        int(step.beat),
        step.prefill_tokens,
        step.decode_tokens,
        step.requests,
        step.held,
        round(step.start * 1e6),
        duration,
        why,
    ]


def render(lanes: Lanes, *, live: str | None = None) -> str:
    """Return the page.

    Args:
        lanes: of all ranks.
        live: address, on the server that the page comes from, that answers with `payload` as it is then; asked every
            two seconds.
    """
    here = files("onbeat_engine.lanes")
    style = (here / "page.css").read_text(encoding="utf-8")
    script = (here / "page.js").read_text(encoding="utf-8")
    packed = {**payload(lanes), "live": live}
    # In a script element nothing is escaped; only its end must not occur.
    data = json.dumps(packed, separators=(",", ":")).replace("<", "\\u003c")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    if live is not None:
        policy += "; connect-src 'self'"
    summary = summarize(lanes)
    drawn = {step.shown for step in lanes} | {"beat", "off", "prefill", "mixed", "decode", "held", "dummy"}
    legend = "".join(
        f'<li><canvas data-kind="{kind}" aria-hidden="true"></canvas>{escape(text)}</li>'
        for kind, text in LEGEND.items()
        if kind in drawn and not (kind in ("beat", "off", "held") and lanes.interval == 1)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in lanes.notes)
    ranks = len(lanes.steps)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(cadence(summary))} · onbeat lanes</title>
<style>
{style}</style>
</head>
<body>
<header>
<p class="kind">onbeat lanes · {ranks} rank{"s" * (ranks != 1)}{" · live" if live else ""}</p>
<h1 id="headline">{escape(_sentence(headline(summary)))}</h1>
<dl class="tiles">{"".join(_tile(at, *tile) for at, tile in enumerate(_tiles(summary)))}</dl>
{f'<ul class="notes">{notes}</ul>' if notes else ""}
</header>
<main>
<ul class="legend" aria-label="Legend">{legend}</ul>
<div class="controls">
<button data-act="all">whole run</button><button data-act="end">end</button>
<button data-act="in" aria-label="zoom in">+</button><button data-act="out" aria-label="zoom out">&minus;</button>
<button data-act="left" aria-label="earlier">←</button><button data-act="right" aria-label="later">→</button>
<button data-act="previous">previous off the beat</button><button data-act="next">next off the beat</button>
<label><input type="checkbox" id="log"> short steps taller</label>
<span class="window" id="window" aria-live="polite"></span>
</div>
<div class="board"><canvas id="detail" tabindex="0" role="img" aria-label="{escape(headline(summary))}"></canvas></div>
<p class="caption">Columns are {"lock steps of the group" if lanes.lock_step else "each rank's own steps"},
height is step time. Drag or wheel to move and zoom, hover for a step. The whole run:</p>
<div class="board"><canvas id="overview" role="img" aria-label="The whole run"></canvas></div>
{_table(summary)}
</main>
<div id="tip" role="status"></div>
<script type="application/json" id="data">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


Tile = tuple[str, str, str]
"""Name, value, class."""


def _tiles(summary: Summary) -> list[Tile]:
    off = summary.prefill_steps - summary.on_beat
    steps = "lock steps" if summary.lock_step else "steps"
    tiles = [("interval", str(summary.interval), "")]
    if summary.interval > 1:
        tiles.append(
            ("prefill steps on the beat", percent(summary.on_beat, summary.prefill_steps), "" if off else "good")
        )
        tiles.append(("prefill steps off the beat", f"{off:,}", "bad" if off else "good"))
    tiles.append((f"{steps} with prefill", percent(summary.columns_with_prefill, summary.columns), ""))
    for name, seconds in (("pure-decode step", summary.decode_s), ("step with prefill", summary.prefill_s)):
        tiles.append((f"{name}, median", "not recorded" if seconds is None else milliseconds(seconds), ""))
    return tiles


def _tile(at: int, name: str, value: str, kind: str) -> str:
    return f'<div class="{kind}"><dt>{escape(name)}</dt><dd id="tile-{at}">{escape(value)}</dd></div>'


def _table(summary: Summary) -> str:
    kinds = [kind for kind in ("prefill", "mixed", "decode", "dummy", "exchange", "empty")
             if any(kind in rank.kinds for rank in summary.ranks)]  # fmt: skip
    head = "".join(f'<th scope="col">{kind}</th>' for kind in (*kinds, "held back", "prefill on the beat"))
    rows = "".join(
        f'<tr><th scope="row">rank {rank.rank}</th>'
        + "".join(f"<td>{rank.kinds.get(kind, 0):,}</td>" for kind in kinds)
        + f"<td>{rank.held_steps:,}</td><td>{rank.on_beat:,} of {rank.prefill_steps:,}</td></tr>"
        for rank in summary.ranks
    )
    return (
        '<p class="caption">Steps of each rank</p>'
        f'<table><thead><tr><th scope="col"></th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    )
