"""`onbeat bench throughput` and `latency`: the engine in this process, without a server."""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

from onbeat_engine.bench.prompts import Planned
from onbeat_engine.bench.stats import describe
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.errors import OnbeatError

LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)


class Generator(Protocol):
    """What is measured: `onbeat_engine.LLM`, or something like it."""

    def generate(self, prompts: Any, sampling_params: Any, /, *, use_tqdm: bool) -> Sequence[Any]:
        """Return an output for each prompt."""
        ...

    def get_tokenizer(self) -> Any:
        """Return the tokenizer; it has a `vocab_size`."""
        ...

    def shutdown(self) -> None:
        """End."""
        ...


def engine(model: str | None, options: dict[str, Any]) -> Generator:
    """Load the model.

    Raises:
        OnbeatError: the engine cannot be imported, or the model not be loaded.
    """
    try:
        made: Generator = import_module("onbeat_engine").LLM(model, **options)  # only now: it loads torch
    except ModuleNotFoundError as error:
        raise OnbeatError(
            f"the engine needs the module {error.name!r}, which is not installed; pip install 'onbeat[engine]'"
        ) from error
    return made


def sampling(output_len: int, seed: int) -> SamplingParams:
    """Return how benchmarks sample: exactly so many tokens."""
    return SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True, seed=seed)


def throughput(llm: Generator, planned: Sequence[Planned], *, seed: int = 0) -> dict[str, Any]:
    """Give all requests at once, and return tokens and requests per second until the last has ended."""
    prompts = [each.prompt for each in planned]
    params = [sampling(each.output_len, seed + at) for at, each in enumerate(planned)]
    began = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - began
    inputs = sum(len(each.prompt_token_ids or ()) for each in outputs)
    tokens = _tokens(outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(planned),
        "total_input_tokens": inputs,
        "total_output_tokens": tokens,
        "requests_per_second": len(planned) / elapsed,
        "output_tokens_per_second": tokens / elapsed,
        "tokens_per_second": (inputs + tokens) / elapsed,
    }


def latency(
    llm: Generator,
    planned: Sequence[Planned],
    *,
    warmups: int,
    iterations: int,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Give one batch again and again, each time after the last has ended; return how long a batch takes.

    The prefix cache makes the second batch cheaper than the first; the caller switches it off.
    """
    prompts = [each.prompt for each in planned]
    params = [sampling(each.output_len, seed + at) for at, each in enumerate(planned)]
    times = []
    tokens = 0
    for at in range(warmups + iterations):
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        if at >= warmups:
            times.append(time.perf_counter() - began)
            tokens += _tokens(outputs)
        if progress is not None:
            progress()
    found = describe(times, LATENCY_PERCENTILES)
    return {
        "avg_latency": found["mean"],
        "latencies": times,
        "percentiles": {f"{each:g}": found[f"p{each:g}"] for each in LATENCY_PERCENTILES},
        "output_tokens_per_second": tokens / sum(times),
    }


def _tokens(outputs: Sequence[Any]) -> int:
    """Count what was sampled.

    Raises:
        OnbeatError: a request failed: then nothing that was measured says anything.
    """
    for output in outputs:
        for completion in output.outputs:
            if completion.finish_reason not in ("length", "stop"):
                why = getattr(completion, "error", None) or completion.finish_reason
                raise OnbeatError(f"request {output.request_id} did not come to its end: {why}")
    return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
