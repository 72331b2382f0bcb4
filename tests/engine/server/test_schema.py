"""schemathesis against the server's own OpenAPI document: nothing that it allows or forbids is answered with a 5xx."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.engine.server.live import Live, over
from tests.engine.server.stub import StubEngine

EXAMPLES = 25
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
ADMIN = ("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache")
"""What changes the state of the server would have all others refused."""


@pytest.fixture
def server() -> Iterator[Live]:
    with over(StubEngine(max_model_len=64)) as server:
        yield server


def schemathesis(server: Live, *flags: str) -> None:
    pytest.importorskip("schemathesis")
    command = [
        *(sys.executable, "-m", "schemathesis.cli"),
        *("run", f"{server.url}/openapi.json", "--checks", CHECKS, "--max-examples", str(EXAMPLES)),
        *("--phases", "examples,coverage,fuzzing", "--seed", "7", "--no-color", "--request-timeout", "10"),
        *("--generation-database", "none", "--suppress-health-check", "all", *flags),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env={**os.environ})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert not server.engine.running, "nothing is left in the engine"


def test_requests(server: Live) -> None:
    schemathesis(server, *(part for path in ADMIN for part in ("--exclude-path", path)))


def test_admin(server: Live) -> None:
    schemathesis(server, *(part for path in ADMIN for part in ("--include-path", path)))
