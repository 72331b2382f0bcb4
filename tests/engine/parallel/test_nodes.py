"""Two machines, as two network namespaces: front end and rank 0 on one, rank 1 on the other, both under torchrun."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.parallel.place import interface_towards
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.ports import free_port
from tests.engine.parallel.serving import alone
from tests.engine.parallel.test_engine import CONFIG, LENGTH, PROMPTS, ask
from tests.engine.runner.models import tiny


class Nodes(NamedTuple):
    here: str
    there: str
    run_there: list[str]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    name = f"onbeat{os.getpid() % 10000}"
    net = f"10.{192 + os.getpid() // 256 % 64}.{os.getpid() % 256}"  # another run of this test has another
    here, there = f"{net}.1", f"{net}.2"
    commands = [
        f"ip netns add {name}",
        f"ip link add {name}a type veth peer name {name}b netns {name}",
        f"ip addr add {here}/30 dev {name}a",
        f"ip link set {name}a up",
        f"ip -n {name} addr add {there}/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
        f"ip -n {name} link set lo up",
    ]
    try:
        if shutil.which("ip") is None:
            pytest.skip("two network namespaces need iproute2's `ip`")
        for command in commands:
            made = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"two network namespaces cannot be made here: {command}: {made.stderr.strip()}")
        yield Nodes(here, there, ["ip", "netns", "exec", name])
    finally:
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_ranks_on_two_machines_give_one_machines_tokens(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tiny.llama(tmp_path, vocab_size=256)
    right = alone(replace(CONFIG, model=str(tmp_path)), PROMPTS, LENGTH)
    config = replace(
        CONFIG, model=str(tmp_path), moe_upcycle=4, data_parallel_address=nodes.here, collective_timeout=20
    )
    assert interface_towards(nodes.there) == f"onbeat{os.getpid() % 10000}a"

    async def work() -> dict[str, list[int]]:
        address = f"tcp://{nodes.here}:{free_port(nodes.here)}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
        torchrun += [f"--master-addr={nodes.here}", f"--master-port={free_port(nodes.here)}"]
        rank = ["-m", "onbeat_engine.rank", "--connect", address]
        path = os.pathsep.join(entry for entry in sys.path if entry)
        commands = [[*torchrun, "--node-rank=0", *rank], [*nodes.run_there, *torchrun, "--node-rank=1", *rank]]
        agents = [subprocess.Popen(each, env={**os.environ, "PYTHONPATH": path}) for each in commands]
        try:
            engine = await AsyncLLM.from_config(config, tokenizer=tokenizer(), listen=address, local_ranks=0)
            outputs = await asyncio.gather(*(ask(engine, id, prompt, LENGTH) for id, prompt in PROMPTS.items()))
            await engine.shutdown()
            assert [await asyncio.to_thread(agent.wait, 20) for agent in agents] == [0, 0]
        finally:
            for agent in agents:
                agent.terminate()
                agent.wait()
        return {output.request_id: list(output.outputs[0].token_ids) for output in outputs}

    assert asyncio.run(asyncio.wait_for(work(), 90)) == right
