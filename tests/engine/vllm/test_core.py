"""vLLM's own engine core takes the class by its name and runs it; only the workers are made up."""

import warnings
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.vllm.needs import needs_vllm

needs_vllm()

from tests.engine.vllm import real  # noqa: E402 - only where vLLM is installed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own imports use what others have deprecated
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor
    from vllm.v1.outputs import ModelRunnerOutput

BLOCK_BYTES = 2 * 4 * 4 * 16 * 4
"""Keys and values of a block: 4 tokens, 4 heads, 16 floats."""


class Workers(Executor):  # type: ignore[misc]  # vLLM is not type-checked: its classes are Any
    """Runs no model: samples a 7 for everybody whose prompt is done."""

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    @property
    def max_concurrent_batches(self) -> int:
        return 2 if self.vllm_config.scheduler_config.async_scheduling else 1

    def _init_executor(self) -> None:
        self.prompts: dict[str, int] = {}

    def get_kv_cache_specs(self) -> Any:
        return [{"layer": real.attention(4)}]

    def determine_available_memory(self) -> list[int]:
        return [1024 * BLOCK_BYTES]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        return [["LBNHC"]]

    def initialize_from_config(self, kv_cache_configs: Any) -> None: ...

    def compile_or_warm_up_model(self) -> None: ...

    def collective_rpc(self, method: Any, *arguments: Any, **named: Any) -> list[None]:
        return [None]

    def check_health(self) -> None: ...

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        self.step = scheduler_output
        empty = ModelRunnerOutput(req_ids=[], req_id_to_index={})
        return answer(None if scheduler_output.num_scheduled_tokens else empty, non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        step, cached = self.step, self.step.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in step.scheduled_new_reqs:
            self.prompts[new.req_id], computed[new.req_id] = len(new.prompt_token_ids), new.num_computed_tokens
        ids = list(step.num_scheduled_tokens)
        done = [computed[id] + step.num_scheduled_tokens[id] >= self.prompts[id] for id in ids]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=[[7] if each else [] for each in done],
        )
        return answer(output, non_block)


def answer(output: Any, non_block: bool) -> Any:
    future: Future[Any] = Future()
    future.set_result(output)
    return future if non_block else output


def serve(name: str | None, interval: int, lookahead: bool) -> tuple[list[dict[str, int]], list[str]]:
    """Serve some requests; return the tokens of each step, and who ended, in order."""
    options = real.Options(interval=interval, lookahead=lookahead)
    core = EngineCore(real.configuration(options, scheduler_cls=name), Workers, log_stats=False)
    scheduler, steps, ended = core.scheduler, [], []
    schedule = scheduler.schedule

    def watched(*arguments: Any) -> Any:
        output = schedule(*arguments)
        steps.append(dict(output.num_scheduled_tokens))
        return output

    scheduler.schedule = watched
    source = SimpleNamespace(scheduler=scheduler, options=options, added=0)
    for number in range(60):
        if number % 2 == 0 and number < 20:
            real.Engine.add(source, f"r{number}", 5 + number, 8)  # type: ignore[arg-type]  # it needs no more of one
        outputs, _ = core.step_fn()
        for each in (outputs or {}).values():
            ended += [one.request_id for one in each.outputs if one.finish_reason is not None]
    return steps, ended


@pytest.mark.parametrize(("lookahead", "name"), [(False, "OnbeatScheduler"), (True, "OnbeatAsyncScheduler")])
def test_the_engine_core_serves_with_it(lookahead: bool, name: str) -> None:
    stock = serve(None, 1, lookahead)
    assert serve(f"onbeat_engine.vllm.{name}", 1, lookahead) == stock
    steps, ended = serve(f"onbeat_engine.vllm.{name}", 3, lookahead)
    assert sorted(ended) == sorted(stock[1])
    assert len(ended) == 10
    prefills = [number for number, tokens in enumerate(steps) if any(each > 1 for each in tokens.values())]
    assert len(prefills) < len({id for tokens in steps for id in tokens}), "several prompts came in on one beat"
