"""A run's numbers, as a table for people and as one JSON object."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console
from rich.table import Table

from onbeat_engine.bench.client import RequestResult
from onbeat_engine.bench.stats import METRICS

LATE_MS = 10.0
"""A client that gets to its requests later than this does not send the load that was asked for."""


def show(result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float], console: Console) -> None:
    """Print the tables."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="dim")
    facts.add_column(justify="right")
    failed = result["failed"]
    facts.add_row("requests", f"{result['completed']:,} completed, {failed:,} failed")
    facts.add_row("duration", f"{result['duration']:.2f} s")
    facts.add_row("peak concurrency", f"{result['max_concurrent_requests']:,}")
    facts.add_row("tokens", f"{result['total_input_tokens']:,} in, {result['total_output_tokens']:,} out")
    facts.add_row("requests/s", f"{result['request_throughput']:.2f}")
    facts.add_row("output tokens/s", f"{result['output_throughput']:,.1f}")
    facts.add_row("total tokens/s", f"{result['total_token_throughput']:,.1f}")
    if "request_goodput" in result:
        limits = " ".join(f"{name}:{limit:g}" for name, limit in result["goodput"].items())
        facts.add_row(f"goodput ({limits})", f"{result['request_goodput']:.2f} requests/s, {result['good']:,} good")
    if "max_lateness_ms" in result:
        facts.add_row(
            "client late by", f"p99 {result['p99_lateness_ms']:.1f} ms, max {result['max_lateness_ms']:.1f} ms"
        )
    console.print(facts)
    table = Table(pad_edge=False, box=None, header_style="dim")
    table.add_column("ms")
    names = ["mean", *(f"p{each:g}" for each in percentiles)]
    for name in names:
        table.add_column(name, justify="right")
    for metric in metrics:
        values = [result.get(f"{name}_{metric}_ms") for name in names]
        table.add_row(METRICS[metric], *("-" if value is None else f"{value:,.2f}" for value in values))
    console.print()
    console.print(table)
    for line in warnings(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Return what a reader of the numbers must know."""
    found = [f"failed: {count:,} x {error}" for error, count in result["errors"].items()]
    # All at once, somebody has to be last.
    if result.get("p99_lateness_ms", 0.0) > LATE_MS and result["request_rate"] != "inf":
        found.append(
            f"warning: this client was late, by {result['p99_lateness_ms']:.1f} ms at p99; "
            "the load was not as requested"
        )
    if result["uncounted"]:
        found.append(
            f"warning: the server reported no usage for {result['uncounted']:,} requests; their chunks were counted"
        )
    if result["short"]:
        found.append(
            f"note: {result['short']:,} requests ended before their length; --ignore-eos requests the full length"
        )
    return found


def details(outcomes: Sequence[RequestResult]) -> dict[str, Any]:
    """Return every request's own numbers, as lists in the order of the requests; times are seconds."""
    return {
        "start_times": [each.sent for each in outcomes],
        "input_lens": [
            each.planned.prompt_len if each.prompt_tokens is None else each.prompt_tokens for each in outcomes
        ],
        "output_lens": [each.tokens for each in outcomes],
        "ttfts": [each.chunks[0] - each.sent if each.chunks else 0.0 for each in outcomes],
        "itls": [[b - a for a, b in pairwise(each.chunks)] for each in outcomes],
        "e2els": [each.ended - each.sent for each in outcomes],
        "errors_by_request": [each.error for each in outcomes],
    }
