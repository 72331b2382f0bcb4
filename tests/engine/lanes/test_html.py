"""The page: what is in it, and that its script runs."""

import json
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from onbeat_engine.lanes import (
    LaneRing,
    Lanes,
    LaneStep,
    headline,
    payload,
    read_lanes,
    render,
    summarize,
)
from onbeat_spec.trace_read import trace_paths
from tests.engine.lanes.traces import record

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def data(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    packed = json.loads(found[1])
    assert isinstance(packed, dict)
    return packed


@pytest.fixture
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lanes:
    return read_lanes(trace_paths([str(record(tmp_path / "traces", 2, monkeypatch))]))


def test_every_step_is_in_the_page(lanes: Lanes) -> None:
    packed = data(render(lanes))
    assert packed == {**payload(lanes), "live": None}
    ranks = packed["ranks"]
    assert isinstance(ranks, list)
    assert [len(rank["steps"]) for rank in ranks] == [len(steps) for steps in lanes.steps.values()]
    first = LaneStep(0, 8, "mixed", False, 30, 2, 3, 1, "saturated", 1.5, 0.0125)
    assert payload(Lanes({0: (first,)}, 2))["ranks"] == [
        {"rank": 0, "steps": [[8, 1, 0, 30, 2, 3, 1, 1_500_000, 12_500, 0]]}
    ]


def test_it_loads_nothing_and_asks_only_its_own_server(lanes: Lanes) -> None:
    page = render(lanes)
    assert not re.findall(r"(?:src|href)=|https?://|@import|url\(", page)
    assert "connect-src" not in page
    assert "connect-src 'self'" in render(lanes, live="/lanes.json")


def test_what_comes_from_a_trace_is_escaped() -> None:
    page = render(Lanes({0: (LaneStep(0, 1, "decode"),)}, 2, notes=("</ul><script>",)), live="</script><b>")
    assert "<b>" not in page
    assert "</ul><script>" not in page
    assert data(page)["live"] == "</script><b>"


def _dom(page: str, folder: Path) -> str:
    """Return what the browser makes of a page, the script's errors added as text."""
    catch = "<script>addEventListener('error', (e) => { document.body.dataset.error = e.message; });</script><title>"
    path = folder / "page.html"
    path.write_text(page.replace("<title>", catch, 1), encoding="utf-8")
    return _open(path.as_uri(), folder)


def _open(address: str, folder: Path, *, milliseconds: int = 2000) -> str:
    """Return the document as it is after so many milliseconds of the browser's own time."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    assert CHROMIUM is not None
    run = subprocess.run(
        [CHROMIUM, *flags, f"--virtual-time-budget={milliseconds}", "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return run.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_script_draws(lanes: Lanes, tmp_path: Path) -> None:
    probe = """<script>
const inked = (canvas) => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v);
const off = document.querySelector("[data-act=next]");
document.body.dataset.inked = [detail, overview].map(inked).join();
off.click();
document.body.dataset.tip = say(0, data.ranks[0].steps.find(offBeat));
</script></body>"""
    dom = _dom(render(lanes).replace("</body>", probe), tmp_path)
    assert "data-error=" not in dom
    assert 'data-inked="true,true"' in dom
    assert re.search(r"lock steps \d+ to \d+ of 0 to \d+", dom)
    assert "off the beat" in re.findall(r'data-tip="([^"]*)"', dom)[0]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_script_takes_a_server_that_has_done_nothing(tmp_path: Path) -> None:
    assert "data-error=" not in _dom(render(LaneRing().lanes()), tmp_path)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_live_page_takes_news(lanes: Lanes, tmp_path: Path) -> None:
    """Served as a server would: the page shows the first 20 lock steps, and then is told of all."""
    early = lanes.window(0, 20)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = self.path == "/lanes"
            answer = render(early, live="/lanes.json") if page else json.dumps(payload(lanes))
            self.send_response(200 if self.path in ("/lanes", "/lanes.json") else 404)
            self.send_header("content-type", "text/html" if page else "application/json")
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            dom = _open(f"http://127.0.0.1:{server.server_port}/lanes", tmp_path, milliseconds=5000)
        finally:
            server.shutdown()
            thread.join()
    _, last = lanes.numbers() or (0, 0)
    assert f"of 0 to {last}</span>" in dom
    # It was at the end, and went along.
    assert f"to {last} of" in dom
    assert f'<h1 id="headline">{headline(summarize(lanes))[0].upper()}' in dom
    assert headline(summarize(lanes))[1:] in dom
