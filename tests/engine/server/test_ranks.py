"""Several ranks behind one address."""

import json
import os
import signal
import threading
from typing import Any

from tests.engine.server.live import until
from tests.engine.server.routes.test_health import sample
from tests.engine.server.test_api_cases import engine, idle, stream


def test_each_rank_has_its_metrics_and_its_readiness() -> None:
    with engine(0.01, data_parallel_size=2) as server, server.http() as http:
        answers: list[list[Any]] = []
        clients = [
            threading.Thread(target=lambda: answers.append(stream(server, prompt="hi", max_tokens=100)))
            for _ in range(4)
        ]
        for client in clients:
            client.start()
        assert until(lambda: [stats.running for stats in server.engine.stats()] == [2, 2])
        text = http.get("/metrics").text
        assert [sample(text, "onbeat:num_requests_running", engine=rank) for rank in "01"] == [2, 2]
        assert [rank["running"] for rank in http.get("/ready").json()["ranks"]] == [2, 2]
        os.kill(server.engine.ranks[1].pid, signal.SIGKILL)
        for client in clients:
            client.join(20)
        ends = sorted("error" if "error" in chunks[-1] else "length" for chunks in answers)
        assert ends == ["error", "error", "length", "length"], "those of the other rank finish"
        assert http.get("/health").status_code == 200
        ready = http.get("/ready")
        assert ready.status_code == 200, "one rank serves"
        assert [rank["alive"] for rank in ready.json()["ranks"]] == [True, False]
        whole = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert whole.status_code == 200, json.dumps(whole.json())
        assert until(lambda: idle(server))
