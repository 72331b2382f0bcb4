"""The verb `onbeat bench serve`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onbeat_engine.bench.client import RequestResult, ServerTarget
from onbeat_engine.bench.curves import page
from onbeat_engine.bench.prompts import Lengths
from onbeat_engine.bench.report import details, show
from onbeat_engine.bench.serve import Load, serve
from onbeat_engine.bench.stats import METRICS, parse_goodput
from onbeat_engine.verbs.bench_options import FILE, progress_bar, write_json


class Rate(click.ParamType[float]):
    """Requests per second: a number above 0, or inf."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            rate = float(value)
        except ValueError:
            rate = -1.0
        if not rate > 0:
            self.fail(f"{value!r} is neither inf nor a number above 0", param, ctx)
        return rate


def _numbers(text: str, name: str) -> tuple[float, ...]:
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= each <= 100 for each in found):
        raise click.BadParameter(f"{text!r} is no list of numbers from 0 to 100, such as 50,90,99", param_hint=name)
    return found


def _json_object(text: str | None, name: str) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{text!r} is no JSON object", param_hint=name)
    return found


@click.command("serve")
@click.option("--base-url", metavar="URL", help="URL of the server, without /v1; replaces --host and --port.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@click.option("--backend", type=click.Choice(["openai", "openai-chat"]), default="openai", show_default=True)
@click.option("--endpoint", metavar="PATH", help="Path of the endpoint; default: the backend's.")
@click.option("--model", metavar="NAME", help="Model; default: the first that the server lists.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Sent as bearer token.", show_envvar=True)
@click.option("--header", "headers", multiple=True, metavar="KEY=VALUE", help="Additional header; may be repeated.")
@click.option("--extra-body", metavar="JSON", help="Additional fields of every request.")
@click.option("--dataset-name", type=click.Choice(["random", "trace"]), default="random", show_default=True)
@click.option("--dataset-path", metavar="FILE", help="Trace: Azure CSV, Mooncake JSONL, or 'builtin'.")
@click.option("--num-prompts", default=1000, show_default=True, type=click.IntRange(min=1))
@click.option("--random-input-len", default=1024, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--random-output-len", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--random-range-ratio", default=0.0, show_default=True, type=click.FloatRange(0, 1, max_open=True))
@click.option("--random-prefix-len", default=0, show_default=True, type=click.IntRange(min=0))
@click.option(
    "--vocab-size", type=click.IntRange(min=2), help="Send token ids below this number: exact prompt lengths."
)
@click.option("--max-input-len", type=click.IntRange(min=1), help="Truncate the prompts of a trace.")
@click.option("--max-output-len", type=click.IntRange(min=1), help="Truncate the outputs of a trace.")
@click.option("--trace-speed", default=1.0, show_default=True, type=click.FloatRange(min=0, min_open=True))
@click.option("--request-rate", type=Rate(), help="Per second, or inf. Default: inf; for a trace, its times.")
@click.option(
    "--burstiness",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Shape of the gamma-distributed gaps: 1 is Poisson, less is burstier.",
)
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), help="Most concurrent requests: the load is not open-loop then."
)
@click.option(
    "--num-warmups", default=0, show_default=True, type=click.IntRange(min=0), help="Requests before the measurement."
)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0))
@click.option("--ignore-eos", is_flag=True, help="Request the full output length.")
@click.option("--seed", default=0, show_default=True, type=int)
@click.option("--request-timeout", default=600.0, show_default=True, type=click.FloatRange(min=0, min_open=True))
@click.option("--percentile-metrics", default="ttft,tpot,itl,e2el", show_default=True, help="Metrics of the table.")
@click.option("--metric-percentiles", default="50,90,99", show_default=True)
@click.option("--goodput", multiple=True, metavar="METRIC:MS", help="Limit of a good request, such as ttft:500.")
@click.option("--save-result", is_flag=True, help="Write the results as JSON.")
@click.option("--save-detailed", is_flag=True, help="Include the results of every request.")
@click.option("--result-filename", metavar="FILE", type=FILE, help="File of the results; implies --save-result.")
@click.option("--html", "html_file", metavar="FILE", type=FILE, help="Write latency curves.")
@click.option("--allow-failures", is_flag=True, help="Exit with 0 even if requests failed.")
@click.argument("more_limits", nargs=-1, metavar="[METRIC:MS...]")
def command(**given: Any) -> int:
    """Send requests to a server at their planned times, and print the latencies that clients see.

    TTFT: to the first text. TPOT: per token after the first. ITL: between two chunks. E2E: to the last text. All times
    count from the sending of a request; the client's own lateness is reported.

    Exits with 0 if every request was completed, 1 if one failed, 2 if the server cannot be reached.
    """
    metrics = given["percentile_metrics"].split(",")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(METRICS)}", param_hint="--percentile-metrics")
    percentiles = _numbers(given["metric_percentiles"], "--metric-percentiles")
    if given["more_limits"] and not given["goodput"]:
        raise click.UsageError(f"unexpected argument {given['more_limits'][0]!r}")
    extra = _json_object(given["extra_body"], "--extra-body")
    headers = dict(_pair(each) for each in given["headers"])
    if given["api_key"]:
        headers["Authorization"] = f"Bearer {given['api_key']}"

    chat = given["backend"] == "openai-chat"
    if chat and given["vocab_size"] is not None:
        raise click.BadParameter("a chat is text; leave it out, or use --backend openai", param_hint="--vocab-size")
    body = {"temperature": given["temperature"], **({"ignore_eos": True} if given["ignore_eos"] else {}), **extra}
    target = ServerTarget(
        base_url=given["base_url"] or f"http://{given['host']}:{given['port']}",
        model=given["model"] or "",
        chat=chat,
        endpoint=given["endpoint"],
        headers=headers,
        body=body,
        timeout=given["request_timeout"],
    )
    load = _load(given)
    limits = parse_goodput([*given["goodput"], *given["more_limits"]])
    planned = load.plan()
    failed = 0
    with progress_bar() as progress:
        task = progress.add_task("requests", total=len(planned))

        def ended(outcome: RequestResult) -> None:
            nonlocal failed
            failed += not outcome.ok
            text = f"requests, {failed:,} failed" if failed else "requests"
            progress.update(task, advance=1, description=text)

        result = serve(
            target,
            load,
            planned,
            max_concurrency=given["max_concurrency"],
            warmups=given["num_warmups"],
            percentiles=percentiles,
            goodput=limits,
            progress=ended,
        )
    show(result.numbers, metrics, percentiles, Console(highlight=False))
    _save_serve(given, result.numbers, result.outcomes)
    return 1 if result.numbers["failed"] and not given["allow_failures"] else 0


def _load(given: dict[str, Any]) -> Load:
    """Return the load that the options describe."""
    return Load(
        dataset=given["dataset_name"],
        path=given["dataset_path"],
        num_prompts=given["num_prompts"],
        lengths=Lengths(
            given["random_input_len"],
            given["random_output_len"],
            given["random_range_ratio"],
            given["random_prefix_len"],
        ),
        max_input_len=given["max_input_len"],
        max_output_len=given["max_output_len"],
        rate=given["request_rate"],
        burstiness=given["burstiness"],
        speed=given["trace_speed"],
        vocab_size=given["vocab_size"],
        seed=given["seed"],
    )


def _save_serve(given: Mapping[str, Any], numbers: dict[str, Any], outcomes: Sequence[RequestResult]) -> None:
    path = given["result_filename"]
    if path is None and (given["save_result"] or given["save_detailed"]):
        rate = numbers["request_rate"]
        model = numbers["model_id"].rpartition("/")[2]
        path = Path(f"{numbers['backend']}-{rate}qps-{model}-{numbers['date']}.json")
    if path is not None:
        write_json(path, {**numbers, **(details(outcomes) if given["save_detailed"] else {})})
    if (html := given["html_file"]) is not None:
        said = (
            f"{numbers['model_id']}: {numbers['completed']:,} requests, "
            f"{numbers['request_throughput']:.2f} requests/s, {numbers['output_throughput']:,.0f} output tokens/s"
        )
        html.write_text(page(outcomes, said), encoding="utf-8")
        click.echo(f"wrote {html}")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--header")
    return name, value
