"""The data-parallel engine as a whole: front end and ranks in processes of their own, real models, faults."""

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onbeat_engine.async_llm import AsyncLLM
from onbeat_engine.config import EngineConfig
from onbeat_engine.errors import EngineDead
from onbeat_engine.fake import tokenizer
from onbeat_engine.outputs import RequestOutput
from onbeat_engine.sampling_params import SamplingParams
from onbeat_proofs.check_trace import check_trace
from tests.engine.models import tiny
from tests.engine.parallel.serving import PROMPTS as LONG

LENGTH = 12
PROMPTS = {id: [token % 256 for token in prompt] for id, prompt in LONG.items()}
CONFIG = EngineConfig(
    dtype="float32",
    device="cpu",
    block_size=4,
    num_gpu_blocks_override=60,
    max_model_len=120,
    max_num_batched_tokens=32,
    max_num_seqs=8,
    data_parallel_size=2,
    dp_sync_interval=4,
    prefill_schedule_interval=2,
    on_violation="stop",
    collective_timeout=3.0,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.llama(path, vocab_size=256)
    return path


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def running(work: Coroutine[Any, Any, Any], limit: float = 60.0) -> Any:
    return asyncio.run(asyncio.wait_for(work, limit))


async def start(config: EngineConfig) -> AsyncLLM:
    return await AsyncLLM.from_config(config, tokenizer=tokenizer())


async def ask(engine: AsyncLLM, id: str, prompt: list[int], max_tokens: int = LENGTH) -> RequestOutput:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return [output async for output in engine.generate(prompt, params, id)][-1]


async def all_of(config: EngineConfig, length: int = LENGTH) -> dict[str, list[int]]:
    engine = await start(config)
    try:
        outputs = await asyncio.gather(*(ask(engine, id, prompt, length) for id, prompt in PROMPTS.items()))
        stats = engine.stats()
        assert all(not each.violations for each in stats)
        assert len({each.rank for each in stats if each.prompt_tokens}) == config.data_parallel_size
        return {output.request_id: list(output.outputs[0].token_ids) for output in outputs}
    finally:
        await engine.shutdown()


def test_two_ranks_that_share_experts_or_do_not_give_the_same_tokens(folder: Path, tmp_path: Path) -> None:
    dense = replace(CONFIG, model=str(folder))
    alone = running(all_of(replace(dense, data_parallel_size=1)))
    assert running(all_of(dense)) == alone
    assert running(all_of(replace(dense, moe_upcycle=4, trace_dir=str(tmp_path)))) == alone
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert report.findings == []
    assert report.lock_steps > 0


async def fault(config: EngineConfig, number: int) -> tuple[list[RequestOutput], float, list[int]]:
    engine = await start(config)
    pids = [rank.pid for rank in engine.ranks]
    try:
        asked = [asyncio.ensure_future(ask(engine, id, prompt, 50)) for id, prompt in PROMPTS.items()]
        while engine.stats()[1].generation_tokens == 0:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        os.kill(pids[1], number)
        outputs = await asyncio.gather(*asked)
        seconds = time.monotonic() - began
        if config.moe_upcycle:
            with pytest.raises(EngineDead):
                await engine.check_health()
        else:
            assert (await ask(engine, "later", [5, 6, 7])).outputs[0].finish_reason == "length"
        return outputs, seconds, pids
    finally:
        await engine.shutdown(timeout=2.0)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.parametrize(("number", "bound"), [(signal.SIGKILL, 2.0), (signal.SIGSTOP, 2 * 3.0 + 2.0)])
@pytest.mark.parametrize("experts", [0, 4])
def test_a_rank_that_dies_or_hangs_ends_its_group_and_no_other(
    experts: int, number: int, bound: float, folder: Path
) -> None:
    outputs, seconds, _ = running(fault(replace(CONFIG, model=str(folder), moe_upcycle=experts), number))
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert reasons.count("error") > 0
    if experts:
        assert seconds < bound
    else:  # the other rank shares nothing, and finishes what it has
        assert reasons.count("length") > 0
    assert set(reasons) <= {"error", "length"}
    assert all("rank 1" in str(output.outputs[0].error) for output in outputs if output.outputs[0].error)
