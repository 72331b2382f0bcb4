"""The verb `onbeat delayer`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from onbeat_proofs.delayer.audit import DelayerReport
    from onbeat_proofs.delayer.results import DelayerResult

LEGEND = (
    "p prefillable, r decodes running, b estimate of the prefill batch, q queue, u usage below the watermark, l past "
    "max_delay_ms; + may prefill, - may not, in brackets where nothing is asked; state: of SGLang's delayer, "
    "passes delayed, ! past max_delay_ms"
)


def _ranks(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in value.split(",")}))
    except ValueError:
        raise click.BadParameter(f"{value!r}; give numbers of ranks, such as 2,3") from None


@click.command()
@click.argument("target", default="sglang", metavar="[TARGET]")
@click.option("--ranks", default="2,3", show_default=True, callback=_ranks, metavar="N,...", help="Group sizes.")
@click.option("--max-delay-passes", default=3, show_default=True, help="Bound on refusals in a row.")
@click.option("--token-usage-low-watermark", type=float, help="Share of KV tokens below which no prefill waits.")
@click.option("--queue-min-ratio", type=float, help="Wait until the queue is this many times the running requests.")
@click.option(
    "--max-delay-ms", default=5000.0, show_default=True, help="Milliseconds after which the queue rule gives up."
)
@click.option("--max-running-requests", default=2, show_default=True, help="Slots of a rank.")
@click.option("--prefill-decode-interval", type=int, help="Audit SGLang's rule of this name instead of its delayer.")
@click.option("--prefill-decode-interval-min-bs", default=0, help="Running requests below which it does not apply.")
@click.option("--enable-prefill-delayer", is_flag=True, help="Audit that rule together with the delayer.")
@click.option("--extra", is_flag=True, help="Run the checks too that not every policy promises.")
@click.option(
    "--tensors",
    type=click.Choice(["plain", "torch"]),
    default="plain",
    show_default=True,
    help="Tensors for SGLang's file: a stand-in, or torch itself, which must then be installed.",
)
@click.option("--depth", type=click.IntRange(min=1), help="Depth of the search, in passes.")
@click.option("--seconds", default=120.0, show_default=True, help="Time limit of each exploration.")
@click.option("--json", "json_file", metavar="FILE", type=click.Path(dir_okay=False), help="Write the results to FILE.")
def command(
    target: str,
    *,
    ranks: tuple[int, ...],
    extra: bool,
    tensors: str,
    depth: int | None,
    seconds: float,
    json_file: str | None,
    **numbers: Any,
) -> int:
    """Audit a prefill delayer: a decision that each rank takes from the rows of all ranks.

    TARGET is sglang (the installed one's PrefillDelayer), a path to that file or to the package's folder, onbeat (the
    cadence in this form), or MODULE:CLASS with a method decide(state, rank, rows) that returns (allow, next state);
    MODULE may be a file.py. Every violation is printed as the shortest run of passes.

    Exits with 0 if everything holds, 1 if something is violated, 2 if something could not be decided or was never put
    to the test.
    """
    from onbeat_proofs.delayer.audit import DelayerJob
    from onbeat_proofs.delayer.job import audit_apart
    from onbeat_proofs.delayer.rows import Settings

    for count in ranks:
        Settings(ranks=count, **numbers)  # out of range: an error before anything runs
    job = DelayerJob(target, Settings(**numbers), ranks, extra, tensors, depth, seconds)
    report = audit_apart(job)
    click.echo("\n".join(lines(report)))
    if json_file is not None:
        Path(json_file).write_text(json.dumps(report.as_json(), indent=2) + "\n", encoding="utf-8")
    return report.exit_code


def lines(report: "DelayerReport") -> Iterator[str]:
    """Yield the lines of a report: a row for each verdict, and the run of each violated check."""
    settings = report.job.settings
    interval = {"prefill_decode_interval", "prefill_decode_interval_min_bs"}
    left_out = {"ranks", "enable_prefill_delayer"}
    if settings.prefill_decode_interval is None:
        left_out |= interval
    elif not settings.enable_prefill_delayer:
        left_out |= set(settings.as_json()) - interval - {"max_running_requests"}
    numbers = {name: value for name, value in settings.as_json().items() if value is not None}
    shown = [f"{name} {value:g}" for name, value in numbers.items() if name not in left_out]
    yield f"{report.name}: {', '.join(shown)}"
    yield ""
    rows = [("check", "ranks", "verdict", "strength", "")]
    rows += [(r.check, str(r.ranks), r.verdict, r.strength, r.detail) for r in _in_order(report.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]).rstrip()
    for result in _shown(report.results):
        yield from _finding(result)
    if any(result.run is not None for result in report.results):
        yield f"\n({LEGEND})"
    yield ""
    verdicts = [result.verdict for result in report.results]
    counts = [f"{verdicts.count(v)} {v}" for v in ("holds", "violated", "vacuous", "undecided") if v in verdicts]
    yield f"{len(verdicts)} verdicts: {', '.join(counts)} ({report.seconds:.1f} s)".replace(" holds", " hold")


def _in_order(results: "list[DelayerResult]") -> "list[DelayerResult]":
    """Sort results by check, as the catalogue has them, then by size of group."""
    from onbeat_proofs.delayer.results import STATEMENTS

    return sorted(results, key=lambda result: (list(STATEMENTS).index(result.check), result.ranks, result.strength))


def _shown(results: "list[DelayerResult]") -> "list[DelayerResult]":
    """Return one violation of each check: the smallest group, a run from the start rather than a single pass."""
    smallest: dict[str, DelayerResult] = {}
    for result in results:
        if result.verdict == "violated":
            other = smallest.get(result.check)
            if other is None or (result.ranks, result.strength) < (other.ranks, other.strength):
                smallest[result.check] = result
    return _in_order(list(smallest.values()))


def _finding(result: "DelayerResult") -> Iterator[str]:
    from onbeat_proofs.delayer.results import STATEMENTS
    from onbeat_proofs.delayer.results import lines as table

    yield ""
    yield f"VIOLATED  {result.check}: {STATEMENTS[result.check]}"
    yield f"          {result.ranks} ranks, {result.strength}: {result.detail}"
    if result.run is not None:
        yield ""
        yield from (f"    {line}" for line in table(result.run))
