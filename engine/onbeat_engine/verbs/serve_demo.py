"""The verb `onbeat serve-demo`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from onbeat_engine.bench.demo import DemoPlan, Shown


@click.command("serve-demo")
@click.argument("model", required=False)
@click.option(
    "--folder",
    default=Path("demo"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the traces, the pictures and the server's log.",
)
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(2, 8), help="Ranks in lock step.")
@click.option("--interval", default=2, show_default=True, type=click.IntRange(1), help="Prefill step cadence.")
@click.option("--experts", default=4, show_default=True, type=click.IntRange(2, 64), help="Experts per dense FFN.")
@click.option("--load", default=24, show_default=True, type=click.IntRange(0), help="Completions sent meanwhile.")
def command(model: str | None, *, folder: Path, ranks: int, interval: int, experts: int, load: int) -> int:
    """Serve a MoE on several ranks, send it requests, stop it, and check its trace.

    MODEL is a dense model, as `onbeat serve` takes it, and is made a MoE; the default is SmolLM2-135M-Instruct. The
    answers are compared with those of the dense model on one rank.

    Exits with 0 if all requests were answered, the compared answers are equal, and no invariant was violated, live or
    in the trace; 1 if not; 2 if a part could not be run.
    """
    from onbeat_engine.bench.demo import DemoPlan, run

    plan = DemoPlan(folder=folder, model=model, ranks=ranks, interval=interval, experts=experts, load=load)
    shown = run(plan, lambda text: click.echo(text, nl=False))
    click.echo()
    click.echo("\n".join(lines(plan, shown)))
    return shown.exit_code


def lines(plan: "DemoPlan", shown: "Shown") -> Iterator[str]:
    """Yield the summary."""
    from onbeat_engine.bench.stats import METRICS, describe, latencies
    from onbeat_engine.lanes.summary import cadence

    total = len(shown.outcomes)
    tokens = sum(outcome.tokens for outcome in shown.outcomes)
    yield f"requests  {total} sent, {total - shown.failed} answered, {shown.failed} failed; {len(shown.answers)} chats"
    yield from (f"          {error}" for error in sorted({each.error for each in shown.outcomes if each.error}))
    yield f"answers   {shown.equal} of {len(shown.answers)} equal to the dense model's on one rank"
    yield f"rate      {tokens / shown.seconds:.0f} tokens/s, {tokens:,} tokens in {shown.seconds:.1f} s"
    values = latencies(shown.outcomes)
    for metric in ("ttft", "itl"):
        found = describe(values.of(metric), (99,))
        if found:
            yield f"{METRICS[metric]:<8}  median {found['median']:.0f} ms, p99 {found['p99']:.0f} ms"
    yield f"live      {shown.live_violations} violations; {'ready' if shown.ready else 'NOT READY'} at the end"
    yield f"trace     {shown.lock_steps:,} lock steps, {shown.trace_violations} violations; phase-agrees {shown.phases}"
    if shown.summary is not None:
        yield f"cadence   {cadence(shown.summary)}"
    yield f"picture   {plan.folder / 'lanes.html'}, {plan.folder / 'lanes.png'}"
