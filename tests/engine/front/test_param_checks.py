"""What the front end checks of token ids."""

import pytest

from onbeat_engine.front.param_checks import check_ids, check_prompt_ids
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams


def test_in_range() -> None:
    check_ids(SamplingParams(stop_token_ids=(0, 9), logit_bias={9: 1.0}), 10)
    check_prompt_ids([0, 9], 10)


@pytest.mark.parametrize(
    ("params", "name", "message"),
    [
        (SamplingParams(stop_token_ids=(3, 10)), "stop_token_ids", "does not have: 10; its ids are 0 to 9"),
        (SamplingParams(logit_bias={-1: 1.0}), "logit_bias", "does not have: -1;"),
        (SamplingParams(logit_bias=dict.fromkeys(range(10, 20), 1.0)), "logit_bias", "10, 11, 12, 13, 14, ...;"),
    ],
)
def test_out_of_range(params: SamplingParams, name: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        check_ids(params, 10)
    assert caught.value.param == name


@pytest.mark.parametrize(("prompt", "message"), [([], "no tokens"), ([1, 10], "does not have: 10"), ([-1], "have: -1")])
def test_prompts(prompt: list[int], message: str) -> None:
    """Case B100: an empty prompt is the request's mistake."""
    with pytest.raises(BadRequest, match=message) as caught:
        check_prompt_ids(prompt, 10)
    assert caught.value.param == "prompt"
