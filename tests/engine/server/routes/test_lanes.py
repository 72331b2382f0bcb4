"""The picture of a running server's steps."""

from tests.engine.server.live import until
from tests.engine.server.test_api_cases import engine


def test_lanes_go_along_with_the_steps() -> None:
    with engine(0.002, data_parallel_size=2) as server, server.http() as http:
        assert http.get("/lanes").status_code == 200, "also before the first step"
        for _ in range(2):
            http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 5})
        assert until(lambda: len(http.get("/lanes.json").json()["ranks"]) == 2)
        news = http.get("/lanes.json").json()
        assert [rank["rank"] for rank in news["ranks"]] == [0, 1]
        assert all(len(rank["steps"]) >= 5 for rank in news["ranks"])
        assert all(step[8] >= 1500 for rank in news["ranks"] for step in rank["steps"]), "at least 2 ms each, in us"
        page = http.get("/lanes")
        assert page.headers["content-type"].startswith("text/html")
        assert "/lanes.json" in page.text
