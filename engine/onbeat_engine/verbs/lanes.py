"""The verb `onbeat lanes`."""

import json
from pathlib import Path

import click

from onbeat_engine.lanes import Lanes, Summary, headline, read_lanes, render, summarize
from onbeat_engine.wire.lane_steps import WHYS, Why
from onbeat_spec.errors import TraceError
from onbeat_spec.trace_read import trace_paths

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("lanes")
@click.argument("traces", nargs=-1, required=True, metavar="FILE|FOLDER...")
@click.option("--html", "html_file", metavar="FILE", type=FILE, help="Write an interactive, self-contained page.")
@click.option(
    "--png", "png_file", metavar="FILE", type=FILE, help="Write a picture, of the latest 1,500 steps at most."
)
@click.option("--from", "first", metavar="N", type=int, help="Begin at lock step N.")
@click.option("--to", "last", metavar="N", type=int, help="End at lock step N.")
@click.option("--json", "json_file", metavar="FILE", type=FILE, help="Write the results to FILE.")
def command(
    traces: tuple[str, ...],
    *,
    html_file: Path | None,
    png_file: Path | None,
    first: int | None,
    last: int | None,
    json_file: Path | None,
) -> int:
    """Draw the recorded steps of all ranks, and report whether prefills fall on the beat.

    Give the files of all ranks, or their folder. Ranks are rows, lock steps are columns, and the height of a step is
    its time. The printed numbers are of the steps from --from to --to, by default all.

    Exits with 0 once drawn, 2 if a trace cannot be read or no step is in the range.
    """
    if first is not None and last is not None and last < first:
        raise click.BadParameter(f"{last} lies before --from {first}", param_hint="'--to'")
    whole = read_lanes(trace_paths(traces))
    lanes = whole.window(first, last)
    if lanes.numbers() is None:
        low, high = whole.numbers() or (0, 0)
        raise TraceError(f"there is no step in that range; the trace has steps {low:,} to {high:,}")
    summary = summarize(lanes)
    click.echo("\n".join(lines(lanes, summary)))
    if html_file is not None:
        html_file.write_text(render(lanes), encoding="utf-8")
        click.echo(f"wrote {html_file}")
    if png_file is not None:
        _write_png(lanes, png_file, whole_range=first is None and last is None)
    if json_file is not None:
        json_file.write_text(json.dumps(summary.as_json(), indent=2) + "\n", encoding="utf-8")
        click.echo(f"wrote {json_file}")
    return 0


def _write_png(lanes: Lanes, path: Path, *, whole_range: bool) -> None:
    from onbeat_engine.lanes.png import MOST_STEPS, picture

    low, high = lanes.numbers() or (0, 0)
    if whole_range and high - low >= MOST_STEPS:
        lanes = lanes.window(high - MOST_STEPS + 1, high)
    path.write_bytes(picture(lanes))
    low, high = lanes.numbers() or (0, 0)
    click.echo(f"wrote {path}: steps {low:,} to {high:,}")


def lines(lanes: Lanes, summary: Summary) -> list[str]:
    """Return what is printed."""
    said = [headline(summary), ""]
    for rank in summary.ranks:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in rank.kinds.items())
        beat = f"; {rank.on_beat:,} of {rank.prefill_steps:,} prefill steps on the beat" if summary.interval > 1 else ""
        said.append(f"rank {rank.rank}: {kinds or 'no steps'}; {rank.held_steps:,} held requests{beat}")
    reasons: dict[Why, list[int]] = {}
    for step in sorted(lanes, key=lambda step: step.number):
        if step.why and step.prefills and not step.beat:
            reasons.setdefault(step.why, []).append(step.number)
    for why, numbers in reasons.items():
        shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
        said.append(f"off the beat, {why}: {len(numbers):,} ({shown}); {WHYS[why]}")
    said += [f"note: {note}" for note in lanes.notes]
    return said
