"""The benchmark of the schedulers inside vLLM, on a few small steps."""

import json
from pathlib import Path

import pytest

from benchmarks import _vllm_peer as peer
from benchmarks.vllm_serve import CLASSES, measure
from tests.engine.vllm.needs import needs_vllm

needs_vllm()


@pytest.mark.filterwarnings("ignore")  # vLLM's own imports use what others have deprecated
@pytest.mark.parametrize("held", [False, True])
def test_every_class_is_measured_against_the_stock_one(tmp_path: Path, held: bool) -> None:
    peer.load_vllm()
    peer.register_stub()
    (tmp_path / "config.json").write_text(json.dumps(peer.STUB_CONFIG), encoding="utf-8")
    row = measure(tmp_path, 3, held, steps=2, warmup=1)
    assert set(row["us"]) == set(row["ratio"]) == set(CLASSES)
    assert row["ratio"]["stock"] == 1
    assert all(value > 0 for value in row["us"].values())
