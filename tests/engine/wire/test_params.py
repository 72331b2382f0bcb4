"""Parameters of requests: what is taken as Python callers give it, and what is refused."""

from typing import Any

import pytest

from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams


def made(**params: Any) -> SamplingParams:
    return SamplingParams(**params)


def test_one_stop_string_is_not_its_characters() -> None:
    assert made(stop="END").stop == ("END",)


def test_lists_and_nothing_are_taken_too() -> None:
    params = made(stop=["a", "b"], stop_token_ids=[1, 2])
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))
    assert made(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": "hot"},
        {"temperature": float("nan")},
        {"min_p": None},
        {"max_tokens": "5"},
        {"max_tokens": 0},
        {"min_tokens": 9, "max_tokens": 5},
        {"stop": 5},
        {"stop": (5,)},
        {"stop": ("",)},
        {"stop_token_ids": 5},
        {"logit_bias": [1]},
        {"logit_bias": {1: "x"}},
        {"logit_bias": {1: 101.0}},
        {"seed": 1 << 63},
        {"logprobs": 21},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(params: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as error:
        made(**params)
    assert error.value.param == next(iter(params))
