"""The verb `onbeat bench`: serve, throughput, latency."""

import click

from onbeat_engine.verbs.bench_offline import latency_command, throughput_command
from onbeat_engine.verbs.bench_serve import command as serve_command


@click.group("bench")
def command() -> None:
    """Measure a server, or the engine by itself.

    `serve` sends requests to any OpenAI-compatible server and measures the latencies that clients see; `throughput` and
    `latency` run the engine in this process. Flags and results have the names of vLLM's benchmark where it has them.
    """


command.add_command(serve_command)
command.add_command(throughput_command)
command.add_command(latency_command)
