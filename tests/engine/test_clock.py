"""Nothing depends on the clock of the wall, which may jump: it only stamps what is for people and clients."""

import ast
import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

import onbeat_engine
from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.front.outputs import RequestOutput
from onbeat_engine.testing.fake import expected, tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams

STAMPS = {
    ("bench/serve.py", "now"),
    ("verbs/bench_offline.py", "now"),
    ("server/routes/chat.py", "time"),
    ("server/routes/completions.py", "time"),
    ("server/serving.py", "time"),
    ("text/chat.py", "now"),
    ("vllm/trace.py", "time"),
}
"""Where the date is written: the `created` of an answer, the head of a report or of a trace, the date in a prompt."""
JUMPS = """
import random, time
from onbeat_engine.testing.fake import build
real = time.time
time.time = lambda: real() + random.choice((-1, 1)) * 3600 * random.randrange(100)
"""


def wall_clocks(tree: ast.AST) -> set[str]:
    """Calls of `time.time`, `time.time_ns`, `datetime.now` and the like."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr in ("time", "time_ns", "localtime", "gmtime"):
                found.add(node.attr)
            if node.value.id in ("datetime", "date") and node.attr in ("now", "utcnow", "today"):
                found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found |= {name.name for name in node.names} & {"time", "time_ns", "localtime", "gmtime"}
    return found


def test_only_stamps_are_of_the_wall_clock() -> None:
    root = Path(onbeat_engine.__file__).parent
    found = {
        (str(path.relative_to(root)), name)
        for path in root.rglob("*.py")
        for name in wall_clocks(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == STAMPS


def test_jumps_of_the_clock_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the front end and in the ranks, with limits that a jump would exceed."""
    (tmp_path / "jumping.py").write_text(JUMPS, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * (os.urandom(1)[0] - 128))
    config = EngineConfig(model="delay=0.002", data_parallel_size=2, collective_timeout=1.0)
    params = SamplingParams(temperature=0.0, max_tokens=150, seed=0)

    async def work() -> list[RequestOutput]:
        engine = await AsyncLLM.from_config(config, build="jumping:build", tokenizer=tokenizer())
        try:
            streams = [engine.generate([i], params, str(i), output_kind="final") for i in range(8)]
            outputs = [await anext(stream) for stream in streams]
            await engine.pause_generation(mode="wait")
            await engine.resume_generation()
            await asyncio.sleep(1.2)
            await engine.check_health()
            assert await engine.drain(1.0)
            assert 0 <= outputs[0].finished_time - outputs[0].arrival_time < 10
            return outputs
        finally:
            await engine.shutdown()

    outputs = asyncio.run(asyncio.wait_for(work(), 30))
    assert [output.outputs[0].token_ids for output in outputs] == [expected([i], 150) for i in range(8)]
