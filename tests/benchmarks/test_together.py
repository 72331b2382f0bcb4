"""The check of ranks that agree: a short run, and that it finds what is wrong."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import together
from benchmarks.together import Recorded, Seen, judged

GOOD: dict[str, Any] = {"findings": [], "lock_steps": 7}


def test_a_short_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert together.main(["--requests", "60", "--trace-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "all of it holds" in said
    assert "not alike on all ranks: 0" in said
    first = sorted(tmp_path.glob("*.ndjson"))[0]
    lines = first.read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if index > 20 and '"lock"' in line)
    first.write_text("".join(lines[:at] + lines[at + 1 :]), encoding="utf-8")
    found = together.recorded(tmp_path)
    assert len(found.unequal) == 1
    assert len(judged(Seen(lock_steps=7), found, 0, GOOD)) == 2


@pytest.mark.parametrize(
    ("seen", "code", "results"),
    [
        (Seen(lock_steps=0), 0, GOOD),
        (Seen(lock_steps=7, violations={"DP1": 1}), 0, GOOD),
        (Seen(lock_steps=7, wrong=["x"]), 0, GOOD),
        (Seen(lock_steps=7), 1, GOOD),
        (Seen(lock_steps=7), 0, {}),
        (Seen(lock_steps=7), 0, {"findings": [{}], "lock_steps": 7}),
    ],
)
def test_what_is_wrong_is_found(seen: Seen, code: int, results: dict[str, Any]) -> None:
    same = Recorded(collectives={0: Counter(exchange=1), 1: Counter(exchange=1)})
    assert judged(Seen(lock_steps=7), same, 0, GOOD) == []
    assert len(judged(seen, same, code, results)) == 1
