"""The verb, as a process: its flags, its errors, its signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner

from onbeat_engine.verbs import serve
from onbeat_engine.wire.config import EngineConfig
from onbeat_spec.errors import ConfigError
from tests.engine.server import tiny_model
from tests.engine.server.live import events, until

# The program with this one verb: it need not be installed.
PROGRAM = """
import sys
from importlib.metadata import EntryPoint
from onbeat import program
program._verbs = lambda: {"serve": EntryPoint("serve", "onbeat_engine.verbs.serve:command", program.GROUP)}
sys.exit(program.run())
"""


def start(*args: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights."""
    return tiny_model.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process, and its address; what is left of it at the end is killed."""
    flags = ["--port", "0", "--num-gpu-blocks-override", "300", "--max-model-len", "2000", "--log-level", "warning"]
    process = start(str(folder), *flags, "--drain-timeout", "30", "--served-model-name", "tiny", ONBEAT_API_KEY="key")
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+) on 1 rank", line)
    assert found is not None, (line, process.communicate(timeout=20))
    yield process, found[1]
    if process.poll() is None:
        process.kill()
    process.communicate()


def ask(url: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": "Bearer key"}
    body = {"prompt": "the", "ignore_eos": True, **body}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)


def test_a_signal_lets_what_runs_finish(server: tuple[subprocess.Popen[str], str]) -> None:
    """Case B105: exit code 0, and every stream has its end."""
    process, url = server
    assert httpx.get(f"{url}/v1/models").status_code == 401
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(ask(url, max_tokens=300, stream=True)))
    client.start()
    assert until(lambda: httpx.get(f"{url}/ready").json()["ranks"][0]["running"] == 1)
    for rank in psutil.Process(process.pid).children():  # as service managers do: all processes get it
        rank.terminate()
    process.send_signal(signal.SIGTERM)
    assert until(lambda: ask(url).status_code == 503)
    client.join(60)
    *chunks, done = events(answers[0].text)
    assert done == "[DONE]"
    assert json.loads(chunks[-1])["choices"][0]["finish_reason"] == "length"
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert out == "", "the address is all that is printed there"
    assert "Traceback" not in err


def test_a_second_signal_aborts(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    answers: list[httpx.Response] = []
    client = threading.Thread(target=lambda: answers.append(ask(url, max_tokens=1990, stream=True)))
    client.start()
    assert until(lambda: httpx.get(f"{url}/ready").json()["ranks"][0]["running"] == 1)
    process.send_signal(signal.SIGINT)
    assert until(lambda: httpx.get(f"{url}/ready").status_code == 503)
    process.send_signal(signal.SIGINT)
    client.join(10)
    *chunks, done = events(answers[0].text)
    assert done == "[DONE]"
    assert "shutting down" in json.loads(chunks[-1])["error"]["message"]
    assert process.wait(timeout=20) == 0


def test_a_model_that_is_none(tmp_path: Path) -> None:
    process = start(str(tmp_path / "none"), "--port", "0")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert re.fullmatch(r"onbeat: error: .*none.*\n", err), err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data-parallel-size", "0"], "data_parallel_size is 0; it must be at least 1"),
        (["--moe-upcycle", "2", "--moe-top-k", "3"], "moe_top_k is 3; it must be at most moe_upcycle = 2"),
        (["--data-parallel-size-local", "2"], "data_parallel_size_local is 2; there are 1 ranks"),
        (["--data-parallel-size-local", "0"], "need --data-parallel-rpc-port"),
        (["--max-in-flight", "0"], "max_in_flight is 0; it must be at least 1"),
        (["--port", "70000"], "port is 70000; it must be between 0 and 65535"),
        (["--data-parallel-rpc-port", "99999"], "data_parallel_rpc_port is 99999; it must be 0 to 65535"),
        (["--client-timeout", "inf"], "client_timeout is inf; it must be above 0 and at most 86400"),
        (["--collective-timeout", "inf"], "collective_timeout is inf; it must be above 0 and at most 86400"),
    ],
)
def test_values_out_of_range(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        serve.command.main(flags, standalone_mode=False)


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("no-such-model", "--port", str(port))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == f"onbeat: error: 127.0.0.1:{port} is in use; choose another --port\n"


def test_a_flag_for_every_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(serve.ENGINE) == {field.name for field in fields(EngineConfig)} - {"model"}
    seen: list[Any] = []
    monkeypatch.setattr(serve, "serve", lambda engine, config, **_: seen.append((engine, config)))
    monkeypatch.setenv("ONBEAT_API_KEY", "three")
    runner = CliRunner()
    assert runner.invoke(serve.command, []).exit_code == 0
    assert seen[0][0] == EngineConfig(), "the defaults are the same"
    flags = (
        "m --tokenizer t --dtype float32 --device cpu --seed 3 --max-model-len 10 --moe-upcycle 4 --moe-top-k 3 "
        "--block-size 8 --num-gpu-blocks-override 9 --gpu-memory-utilization 0.5 --attention-backend sdpa "
        "--enforce-eager --max-num-batched-tokens 64 --max-num-seqs 5 --no-enable-prefix-caching "
        "--long-prefill-token-threshold 7 --scheduling-policy priority --async-scheduling --policy pr44558 "
        "--prefill-schedule-interval 2 --max-hold-steps 6 --data-parallel-size 2 --dp-sync-interval 4 "
        "--data-parallel-address 127.0.0.2 --data-parallel-port 6 --collective-timeout 5 --restart "
        "--disable-monitor --on-violation stop --trace-dir d "
        "--api-key one --api-key two --served-model-name a --served-model-name b --host 0.0.0.0 --port 1 "
        "--max-in-flight 11 --max-body-size 12 --drain-timeout 13 --progress-timeout 14 --client-timeout 15"
    )
    result = runner.invoke(serve.command, flags.split())
    assert result.exit_code == 0, result.output
    engine, config = seen[1]
    default = EngineConfig()
    same = {field.name for field in fields(engine) if getattr(engine, field.name) == getattr(default, field.name)}
    assert not same, "every field was given another value"
    assert (config.api_keys, config.served_model_names) == (("one", "two", "three"), ("a", "b"))
    assert (config.host, config.port, config.max_in_flight, config.max_body_size) == ("0.0.0.0", 1, 11, 12)
    assert (config.drain_timeout, config.progress_timeout, config.client_timeout) == (13, 14, 15)
