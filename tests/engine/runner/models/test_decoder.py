"""The decoder against transformers on the same weights, and against itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

from onbeat_engine.runner.models.load import load_model
from onbeat_engine.wire.config import EngineConfig
from tests.engine.runner.models import tiny

TOKENS = [(17 * i + i * i) % 300 for i in range(150)]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (tiny.llama, {}),
    "llama-one-kv-head": (tiny.llama, {"num_key_value_heads": 1}),
    "llama-no-groups": (tiny.llama, {"num_key_value_heads": 4}),
    "llama-head-dim": (tiny.llama, {"head_dim": 24}),
    "llama-tied": (tiny.llama, {"tie_word_embeddings": True}),
    "llama-biases": (tiny.llama, {"attention_bias": True}),
    "llama-scaled": (tiny.llama, {"rope_parameters": LLAMA3}),
    "llama-theta": (tiny.llama, {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}),
    "qwen3": (tiny.qwen3, {}),
    "qwen3-biases": (tiny.qwen3, {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3-moe": (tiny.qwen3_moe, {}),
    "qwen3-moe-plain-weights": (tiny.qwen3_moe, {"norm_topk_prob": False, "num_experts_per_tok": 3}),
    "qwen3-moe-every-other": (tiny.qwen3_moe, {"decoder_sparse_step": 2}),
    "qwen3-moe-first-dense": (tiny.qwen3_moe, {"mlp_only_layers": [0]}),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Every family and every switch, 150 positions, float32."""
    make, changes = MODELS[name]
    theirs = make(tmp_path, **changes)
    ours = load_model(EngineConfig(model=str(tmp_path)))
    assert ours.dtype == torch.float32
    assert tiny.error(tiny.logits(ours.decoder, TOKENS), tiny.expected(theirs, TOKENS)) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3-moe"])
def test_bfloat16_is_as_near_as_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Measured from float32, the error is not much above theirs: rounding, and nothing else."""
    make, changes = MODELS[name]
    theirs = make(tmp_path, **changes)
    right = tiny.expected(theirs, TOKENS)
    ours = load_model(EngineConfig(model=str(tmp_path), dtype="bfloat16"))
    found = tiny.logits(ours.decoder, TOKENS)
    rounded = tiny.expected(theirs.bfloat16(), TOKENS).float()
    assert ours.dtype == torch.bfloat16
    assert found.dtype == torch.float32
    assert (found - right).square().mean() < 2 * (rounded - right).square().mean()


def test_float64_stays_float64(tmp_path: Path) -> None:
    theirs = tiny.qwen3(tmp_path)
    ours = load_model(EngineConfig(model=str(tmp_path), dtype="float64"))
    found = tiny.logits(ours.decoder, TOKENS)
    assert found.dtype == torch.float64
    assert tiny.error(found, tiny.expected(theirs.double(), TOKENS)) < 1e-6


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_no_tokens_is_a_forward_too(name: str, tmp_path: Path) -> None:
    """A rank without tokens still calls the experts, whose ranks wait for it, and no attention."""
    make, changes = MODELS[name]
    make(tmp_path, **changes)
    ours = load_model(EngineConfig(model=str(tmp_path)))
    called: list[int] = []

    def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        called.append(layer)
        assert (x.shape[0], ids.shape, weights.shape) == (0, (0, 2), (0, 2))
        return x

    nothing = torch.empty(0, dtype=torch.int64)
    with torch.inference_mode():
        hidden = ours.decoder.forward(nothing, nothing, _never, experts)
    assert hidden.shape == (0, 48)
    assert called == list(ours.config.sparse_layers)


def test_positions_are_those_given(tmp_path: Path) -> None:
    """Only distances between positions matter to rotary embeddings, so a shifted sequence has the same logits."""
    tiny.llama(tmp_path)
    decoder = load_model(EngineConfig(model=str(tmp_path))).decoder
    ids = torch.tensor(TOKENS[:20])
    with torch.inference_mode():
        first = decoder.logits(decoder.forward(ids, torch.arange(20), tiny.DenseAttention()))
        moved = decoder.logits(decoder.forward(ids, torch.arange(20) + 300, tiny.DenseAttention()))
        apart = decoder.logits(decoder.forward(ids, torch.arange(20) * 2, tiny.DenseAttention()))
    assert tiny.error(moved, first) < 1e-5
    assert tiny.error(apart, first) > 1e-2


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="seen to hold on AVX-512 kernels only")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3-moe"])
def test_a_token_does_not_depend_on_its_company(name: str, dtype: Any, tmp_path: Path) -> None:
    """Bit for bit, but for the attention, which here lets each token see itself only."""
    make, changes = MODELS[name]
    make(tmp_path, **changes)
    decoder = load_model(EngineConfig(model=str(tmp_path), dtype=dtype)).decoder
    ids, positions = torch.tensor(TOKENS[:64]), torch.arange(64).flip(0)

    def alone(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q + (k + v).repeat_interleave(q.shape[1] // v.shape[1], 1)

    def run(begin: int, end: int) -> torch.Tensor:
        with torch.inference_mode():
            return decoder.logits(decoder.forward(ids[begin:end], positions[begin:end], alone))

    whole = run(0, 64)
    for begin, end in ((0, 1), (63, 64), (5, 7), (3, 19), (10, 42), (1, 64)):
        assert torch.equal(run(begin, end), whole[begin:end])


def _never(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    raise AssertionError("attention without tokens")


def test_padding_reaches_no_expert_and_moves_nobodys_hidden_states(tmp_path: Path) -> None:
    """Case N06: five tokens beside three rows of padding; the experts see 5 x top-k choices, whatever the size."""
    tiny.qwen3_moe(tmp_path)
    decoder = load_model(EngineConfig(model=str(tmp_path), dtype="float64")).decoder
    config, experts, chosen = decoder.config, decoder.experts, list[int]()
    assert experts is not None

    def counting(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        chosen.append(int((ids < config.num_experts).sum()))
        return experts(layer, x, ids, weights)

    def hidden(padding: int, *, marked: bool = True) -> torch.Tensor:
        ids = torch.tensor([*TOKENS[:5], *[0] * padding])
        real = torch.arange(len(ids)) < 5 if marked else None
        return decoder.forward(ids, torch.zeros_like(ids), lambda layer, q, k, v: q, counting, real)

    with torch.inference_mode():
        alone = hidden(0, marked=False)
        for padding in (0, 1, 3):
            torch.testing.assert_close(hidden(padding)[:5], alone, rtol=0, atol=1e-12)
    assert set(chosen) == {5 * config.top_k}
