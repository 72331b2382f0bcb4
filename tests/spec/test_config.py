"""A configuration that cannot work is refused, and the message says which value breaks which rule."""

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from onbeat_spec.config import CONFIG_KEYS, Config
from onbeat_spec.errors import ConfigError, OnbeatError

AT_LEAST_ONE = (
    "block_size",
    "num_blocks",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "prefill_schedule_interval",
    "data_parallel_size",
    "max_hold_steps",
)
AT_LEAST_ZERO = ("long_prefill_token_threshold", "num_draft_tokens", "remote_load_timeout")


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        Config(**values)
    return str(refused.value)


@pytest.mark.parametrize("key", AT_LEAST_ONE)
def test_sizes_are_at_least_one(key: str) -> None:
    values: dict[str, Any] = {key: 1}
    assert getattr(Config(**values), key) == 1
    assert refusal(**{key: 0}) == f"{key} is 0; it must be at least 1"
    assert refusal(**{key: -3}) == f"{key} is -3; it must be at least 1"


@pytest.mark.parametrize("key", AT_LEAST_ZERO)
def test_caps_and_times_may_be_zero(key: str) -> None:
    values: dict[str, Any] = {key: 0}
    assert getattr(Config(**values), key) == 0
    assert refusal(**{key: -1}) == f"{key} is -1; it must be 0 or more"


def test_every_number_has_a_least_value() -> None:
    numbers = {field.name for field in fields(Config) if field.type is int}
    assert numbers == {*AT_LEAST_ONE, *AT_LEAST_ZERO}


@pytest.mark.parametrize("value", ["lifo", "FCFS", ""])
def test_the_scheduling_is_one_of_two(value: str) -> None:
    assert refusal(scheduling=value) == f"scheduling is {value!r}; it must be 'fcfs' or 'priority'"


@pytest.mark.parametrize("value", [0, 3, -1])
def test_one_or_two_steps_are_in_flight(value: int) -> None:
    assert refusal(async_depth=value) == f"async_depth is {value}; it must be 1 or 2"


def test_both_words_and_both_depths_are_accepted() -> None:
    assert Config(scheduling="fcfs", async_depth=1).scheduling == "fcfs"
    assert Config(scheduling="priority", async_depth=2).scheduling == "priority"


def test_the_hard_bound_cuts_no_hold_short() -> None:
    assert Config(prefill_schedule_interval=6, max_hold_steps=5).max_hold_steps == 5
    assert refusal(prefill_schedule_interval=7, max_hold_steps=5) == (
        "prefill_schedule_interval is 7; it must be at most max_hold_steps + 1 = 6, "
        "or the hard bound would cut every hold short"
    )


def test_the_refusal_is_an_error_of_ours() -> None:
    assert issubclass(ConfigError, OnbeatError)


def test_a_configuration_does_not_change() -> None:
    config = Config()
    with pytest.raises(FrozenInstanceError):
        config.num_blocks = 1  # type: ignore[misc]
    assert config == Config()


@pytest.mark.parametrize(("threshold", "cap"), [(0, 50), (7, 7), (50, 50), (99, 99)])
def test_without_a_threshold_the_step_is_the_cap(threshold: int, cap: int) -> None:
    assert Config(max_num_batched_tokens=50, long_prefill_token_threshold=threshold).prefill_cap == cap


def test_the_capacity_is_that_of_all_blocks() -> None:
    assert Config(num_blocks=7, block_size=16).capacity == 112


@pytest.mark.parametrize(("longest", "bound"), [(50, 50), (112, 112), (113, 113), (114, 113)])
def test_the_longest_request_is_bound_by_model_and_pool_without_its_last_token(longest: int, bound: int) -> None:
    assert Config(num_blocks=7, block_size=16, max_model_len=longest).longest_request == bound


def test_the_keys_are_the_fields_in_order() -> None:
    assert list(CONFIG_KEYS) == [field.name for field in fields(Config)]
    assert len(CONFIG_KEYS) == 15
