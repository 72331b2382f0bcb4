"""schemathesis against the server's own OpenAPI document: nothing that it allows or forbids is answered with a 5xx."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onbeat_engine.front.async_llm import AsyncLLM
from onbeat_engine.wire.config import EngineConfig
from tests.engine.server import tiny_model
from tests.engine.server.live import MODEL, Live, live, until

EXAMPLES = 15
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
ADMIN = ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache")
"""What changes the state of the server would have all others refused."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """The whole engine, on a model with random weights."""
    folder = tiny_model.write(tmp_path_factory.mktemp("tiny"))
    config = EngineConfig(model=str(folder), max_model_len=64, num_gpu_blocks_override=100, dtype="float32")
    with live(lambda: AsyncLLM.from_config(config)) as server:
        yield server


def schemathesis(server: Live, *flags: str, document: Path | None = None) -> None:
    pytest.importorskip("schemathesis")
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("run", str(document or f"{server.url}/openapi.json"), "--url", server.url),
        *("--checks", CHECKS, "--max-examples", str(EXAMPLES)),
        *("--phases", "examples,coverage,fuzzing", "--seed", "7", "--no-color", "--request-timeout", "10"),
        *("--generation-database", "none", "--suppress-health-check", "all", *flags),
    ]
    with tempfile.TemporaryDirectory() as folder:  # it leaves files behind where it is run
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert until(lambda: server.engine.num_unfinished == 0), "nothing is left in the engine"
    assert until(lambda: server.engine.stats()[0].kv_cache_usage == 0)


BOOLEAN = {"type": "boolean"}
INTEGER = {"type": "integer", "minimum": 1, "maximum": 4}
NUMBER = {"type": "number", "minimum": 0.5, "maximum": 1}
NARROW: dict[str, Any] = {
    "model": {"const": MODEL},
    "prompt": {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^[a-z]+$"},
    "messages": {
        "type": "array",
        "minItems": 1,
        "maxItems": 3,
        "items": {
            "type": "object",
            "properties": {"role": {"const": "user"}, "content": {"type": "string", "maxLength": 5}},
            "required": ["role", "content"],
            "additionalProperties": False,
        },
    },
    "stop": {"type": "string", "minLength": 1, "maxLength": 5},
    "stop_token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}},
    "logit_bias": {"type": "object", "maxProperties": 0},
    **dict.fromkeys(("n", "max_tokens", "max_completion_tokens", "top_k"), INTEGER),
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), NUMBER),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), NUMBER),
    **dict.fromkeys(("seed", "priority"), INTEGER),
    **dict.fromkeys(("stream", "echo", "ignore_eos", "add_special_tokens", "logprobs"), BOOLEAN),
}
"""Values that are served."""


def narrowed(document: dict[str, Any], schema: str) -> None:
    """Let a schema allow only what is served, so that most requests get as far as the engine."""
    found = document["components"]["schemas"][schema]
    kept = {name: narrow for name, narrow in NARROW.items() if name in found["properties"]}
    if schema == "CompletionRequest":
        kept["logprobs"] = INTEGER
        del kept["echo"]  # with logprobs it is not for streams
    found["properties"] = kept
    found["additionalProperties"] = False


def test_requests_that_are_served(server: Live, tmp_path: Path) -> None:
    before = server.engine.stats()[0].generation_tokens
    with server.http() as http:
        document = http.get("/openapi.json").json()
    narrowed(document, "CompletionRequest")
    narrowed(document, "ChatRequest")
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(document))
    paths = ("/v1/completions", "/v1/chat/completions")
    schemathesis(server, *(part for path in paths for part in ("--include-path", path)), document=file)
    assert server.engine.stats()[0].generation_tokens > before + 2 * EXAMPLES, "most of them were served"


def test_requests(server: Live) -> None:
    schemathesis(server, *(part for path in ADMIN for part in ("--exclude-path", path)))


def test_admin(server: Live) -> None:
    schemathesis(server, *(part for path in ADMIN for part in ("--include-path", path)))
