"""Model configurations: what is read, what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat_engine.runner.models.architecture import Llama3Scaling, ModelConfig
from onbeat_engine.wire.errors import ModelError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
}
MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}


def test_defaults() -> None:
    config = ModelConfig.from_hf(LLAMA)
    assert (config.head_dim, config.num_kv_heads, config.rope_theta, config.rope_scaling) == (16, 2, 1e4, None)
    assert (config.is_moe, config.qk_norm, config.dtype, config.eos_token_ids) == (False, False, None, ())


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500.0, "rope_scaling": SCALING},
        {"rope_theta": 500.0, "rope_scaling": {"type": "llama3"} | {k: SCALING[k] for k in list(SCALING)[1:]}},
        {"rope_parameters": SCALING | {"rope_theta": 500.0}},
    ],
    ids=["transformers-4", "older", "transformers-5"],
)
def test_rope_as_each_release_writes_it(rope: dict[str, Any]) -> None:
    config = ModelConfig.from_hf(LLAMA | rope)
    assert config.rope_theta == 500
    assert config.rope_scaling == Llama3Scaling(8, 1, 4, 64)


def test_end_tokens_come_from_both_files() -> None:
    config = ModelConfig.from_hf(LLAMA | {"eos_token_id": 7, "bos_token_id": 1}, {"eos_token_id": [9, 7]})
    assert config.eos_token_ids == (7, 9)
    assert config.bos_token_id == 1


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_moe(name: str) -> None:
    config = ModelConfig.from_hf({k: v for k, v in MOE.items() if k != "num_experts"} | {name: 8})
    assert (config.num_experts, config.top_k, config.norm_topk_prob) == (8, 2, False)
    assert config.sparse_layers == (0, 1, 2, 3)
    some = ModelConfig.from_hf(MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert some.sparse_layers == (1,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not served; these are: LlamaForCausalLM"),
        ({"architectures": None}, "architecture None is not served"),
        ({"vocab_size": None}, "config.json lacks vocab_size"),
        ({"vocab_size": "many"}, "vocab_size in config.json is 'many'; it must be a whole number"),
        ({"vocab_size": True}, "vocab_size in config.json is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be between 1 and"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1 << 30}, "it must be between 1 and 4096"),
        ({"vocab_size": 10**30}, "vocab_size is 10+; it must be between 1 and"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings in config.json is 'no'; it must be true or false"),
        ({"dtype": 16}, "dtype in config.json is 16; it must be a string"),
        ({"rope_theta": float("inf")}, "rope_theta in config.json is inf; it must be a number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5; it must divide hidden_size, 64"),
        ({"num_key_value_heads": 3}, "num_heads is 4; it must be a multiple of 3"),
        ({"head_dim": 15}, "head_dim is 15; it must be even"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not served"),
        ({"mlp_bias": True}, "sets mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "sets quantization_config"),
        ({"use_sliding_window": True}, "sets use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling 'yarn' is not served"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "the rope settings in config.json lacks factor"),
        ({"rope_scaling": SCALING | {"factor": 0.5}}, "needs factor >= 1"),
        ({"rope_parameters": [1]}, "they must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"rope_theta": "big"}, "rope_theta in config.json is 'big'; it must be a number"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps is 0.0"),
        ({"eos_token_id": "</s>"}, "eos_token_id in config.json is '</s>'"),
        (MOE | {"num_experts_per_tok": 9}, "top_k is 9; it must be between 1 and 8"),
        (MOE | {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (MOE | {"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
    ],
)
def test_what_is_not_served_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        ModelConfig.from_hf(LLAMA | changes)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=3,
)
KEYS = [
    *MOE,
    *("head_dim", "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "attention_bias"),
    *("tie_word_embeddings", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "num_local_experts", "dtype"),
    *("torch_dtype", "eos_token_id", "bos_token_id", "quantization_config", "mlp_bias", "use_sliding_window"),
]


@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1, max_size=3), st.sampled_from([LLAMA, MOE]))
def test_whatever_a_file_says_is_a_configuration_or_one_line(changes: dict[str, Any], base: dict[str, Any]) -> None:
    said = ""
    try:
        ModelConfig.from_hf(base | changes, {"eos_token_id": changes.get("eos_token_id")})
    except ModelError as error:
        said = str(error)
    assert "\n" not in said
