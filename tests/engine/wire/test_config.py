"""What configurations are refused."""

from typing import Any

import pytest

from onbeat_engine.wire.config import EngineConfig
from onbeat_spec.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu': Invalid enum value 'tpu'"),
        ({"attention_backend": "json"}, "attention_backend is 'json'"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"on_violation": "weep"}, "on_violation is 'weep'"),
        ({"max_num_seqs": "4"}, "max_num_seqs is '4': Expected `int`, got `str`"),
        ({"block_size": 1.5}, "block_size is 1.5"),
        ({"model": 5}, "model is 5"),
        ({"block_size": 0}, "block_size is 0; it must be at least 1"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization is nan"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"moe_upcycle": 2, "moe_top_k": 3}, "moe_top_k is 3; it must be at most moe_upcycle = 2"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**values)


def test_whole_numbers_are_numbers() -> None:
    assert EngineConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1
