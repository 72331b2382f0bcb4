"""The GPU script's parts, run on the CPU with torch's operators and a graph that is none."""

import pytest
import torch

from benchmarks import gpu
from benchmarks._gpu_cadence import Cadence, faults
from benchmarks._weights import SHAPES, random_model
from onbeat_engine.runner.graphs import Captured, Forward
from onbeat_engine.runner.kv import KVCache
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.lane_steps import LaneStep

CPU = torch.device("cpu")
torch.set_num_threads(1)


def _capture(forward: Forward) -> Captured:
    logits = forward()
    return Captured(lambda: logits.copy_(forward()), logits)


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_only_what_fits_is_measured() -> None:
    model = SHAPES["llama-8b"]
    assert gpu.sizes_that_fit(140 << 30, model, 1024) == list(gpu.SIZES)
    assert gpu.sizes_that_fit(24 << 30, model, 1024) == [1, 2, 4, 8, 16, 32]
    assert gpu.sizes_that_fit(16 << 30, model, 1024) == []


def test_kernels_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GROUPS", [(6, 2, 16)])
    checks = gpu.check_kernels(["sdpa"], CPU)
    assert len(checks) == 6
    assert all(check.holds for check in checks if "float32" in check.name)


def test_replays_are_compared() -> None:
    model = random_model(SHAPES["tiny"], torch.float32, CPU)
    config = EngineConfig(max_num_seqs=5, num_gpu_blocks_override=30)
    checks = gpu.check_replay(model, config, (1, 3, 5), _capture)
    assert [check.name.split()[-1] for check in checks[::2]] == ["1", "4", "5"]
    assert all(check.holds for check in checks)


def test_a_replay_that_writes_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(SHAPES["tiny"], torch.float32, CPU)
    config = EngineConfig(max_num_seqs=5, num_gpu_blocks_override=30)
    caches: list[KVCache] = []
    allocate = KVCache.allocate

    def noted(kv: KVCache) -> None:
        caches.append(kv)
        allocate(kv)

    monkeypatch.setattr(KVCache, "allocate", noted)

    def capture(forward: Forward) -> Captured:
        def replay() -> None:
            caches[0].layers[0][0][29, 0, 3] += 1
            logits.copy_(forward())

        logits = forward()
        return Captured(replay, logits)

    checks = gpu.check_replay(model, config, (2,), capture)
    assert [check.holds for check in checks] == [True, False]


def test_schedules_are_compared() -> None:
    assert all(check.holds for check in gpu.check_schedules(CPU, capture=_capture))


def test_steps_are_timed() -> None:
    model = random_model(SHAPES["tiny"], torch.float32, CPU)
    config = EngineConfig(max_num_seqs=4, num_gpu_blocks_override=20)
    times = gpu.step_times(model, config, (1, 4), 40, rate=1e9, repeats=3, capture=_capture)
    assert [each.sequences for each in times] == [1, 4]
    assert all(each.graph > 0 and each.eager > 0 for each in times)
    hidden, inner, layers, vocab = 192, 256, 3, 512
    per_layer = hidden * (3 + 2) * 64 + hidden * 3 * 64 + 3 * hidden * inner + 2 * hidden
    weights = 4 * (layers * per_layer + hidden + vocab * hidden)
    assert times[0].floor == pytest.approx(1e3 * (weights + 40 * 2 * layers * 64 * 4) / 1e9)


def test_not_a_number_does_not_hold() -> None:
    assert not gpu.Check("x", float("nan"), 1.0).holds


def test_the_loop_is_run_at_each_interval(capsys: pytest.CaptureFixture[str]) -> None:
    checks = gpu.check_loop(CPU, decodes=3, prompts=5, length=40, capture=_capture)
    assert [check.found for check in checks] == [0, 0, 0]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:6]] == [["1", "on"], ["2", "on"], ["1", "off"], ["2", "off"]]


def test_what_depends_on_the_cadence_is_found() -> None:
    right = Cadence(1, graphs=True, tokens={"a": [1, 2]})
    wrong = Cadence(2, graphs=True, tokens={"a": [1, 3]}, steps=[LaneStep(0, 1, "prefill", beat=False)], violations=2)
    assert list(faults([right, right]).values()) == [0, 0, 0]
    assert list(faults([right, wrong]).values()) == [1, 1, 2]


def test_ranks_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = EngineConfig(dtype="float32", device="cpu", num_gpu_blocks_override=64, max_model_len=128)
    assert [check.found for check in gpu.check_ranks(2, config)] == [0]
