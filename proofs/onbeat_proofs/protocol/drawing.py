"""Message sequence charts, drawn: one HTML page of SVG that loads nothing from anywhere."""

from collections.abc import Iterable
from html import escape

from onbeat_proofs.protocol.chart import ChartRow, rows
from onbeat_proofs.protocol.explore import GroupExplored

WIDE, HIGH, TOP, MARGIN = 250, 17, 40, 14
STYLE = """
body { font: 15px system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #222 }
h2 { font-size: 1.05rem; margin: 2.5rem 0 0.2rem } p { margin: 0.2rem 0 0.8rem }
svg { font: 12px ui-monospace, monospace; max-width: 100%; height: auto }
.lane { stroke: #bbb; stroke-dasharray: 3 3 } .turn { fill: #eef4ff; stroke: #9ab6e6 } .head { font-weight: bold }
.arrow { stroke: #b5651d; stroke-width: 1.4; marker-end: url(#tip) } .end { fill: #fdeeee; stroke: #d99 }
"""


def page(runs: Iterable[tuple[str, str, GroupExplored]]) -> str:
    """Return the page: for each run its name, what it shows, and its chart."""
    parts = []
    for name, says, explored in runs:
        title, wrong = escape(f"{name}: {says}"), escape(f"{explored.invariant}: {explored.message}")
        parts.append(f"<h2>{title}</h2>\n<p>{wrong}</p>\n{svg(explored)}")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Runs of a group</title>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>Runs of a group</h1>\n"
        "<p>Time runs down. An arrow is a message that was sent; it is read where a rank says so. "
        "A bar is a turn that all ranks take together.</p>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def svg(explored: GroupExplored) -> str:
    """Return the chart of one run."""
    table, lanes = rows(explored), explored.scope.ranks + 1
    heights = [max(1, *(len(cell) for cell in row.cells)) * HIGH + 10 for row in table]
    width, height = lanes * WIDE, TOP + sum(heights) + MARGIN
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="message sequence chart">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#b5651d"/></marker></defs>',
    ]
    for lane in range(lanes):
        title = f"rank {lane - 1}" if lane else "front end"
        parts.append(f'<text class="head" x="{_middle(lane)}" y="20" text-anchor="middle">{title}</text>')
        parts.append(f'<line class="lane" x1="{_middle(lane)}" x2="{_middle(lane)}" y1="28" y2="{height}"/>')
    y = TOP
    for row, high in zip(table, heights, strict=True):
        parts += _row(row, y, high, width)
        y += high
    return "\n".join([*parts, "</svg>"])


def _middle(lane: int) -> int:
    return lane * WIDE + WIDE // 2


def _row(row: ChartRow, y: int, high: int, width: int) -> Iterable[str]:
    if row.together:
        yield f'<rect class="turn" x="{WIDE}" y="{y}" width="{width - WIDE - 4}" height="{high - 4}" rx="4"/>'
    for lane in row.messages:
        yield f'<line class="arrow" x1="{_middle(0)}" x2="{_middle(lane)}" y1="{y + HIGH + 2}" y2="{y + HIGH + 2}"/>'
    for lane, cell in enumerate(row.cells):
        for number, line in enumerate(cell):
            shown = escape(line.removeprefix("--> "))
            yield f'<text x="{_middle(lane)}" y="{y + HIGH * (number + 1) - 3}" text-anchor="middle">{shown}</text>'
