"""What is refused before anything is sent, and what is filled in."""

from typing import Any

import numpy as np
import pytest

from onbeat_engine.front.preparing import Preparer
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams, StructuredOutput

PREPARER = Preparer(tokenizer(), 100)


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        ("x" * 100, {}, "prompt"),
        ("x" * 100_000, {}, "prompt"),
        ([1] * 100, {}, "prompt"),
        ([256], {}, "prompt"),
        ([-1], {}, "prompt"),
        ("half \ud800", {}, "prompt"),
        ("a", {"stop_token_ids": (256,)}, "stop_token_ids"),
        ("a", {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ([1.5], {}, "prompt"),
        (["a"], {}, "prompt"),
        (None, {}, "prompt"),
    ],
)
def test_what_can_never_be_served_is_refused(prompt: Any, params: dict[str, Any], field: str) -> None:
    """Cases B97 and B100."""
    with pytest.raises(BadRequest) as error:
        PREPARER.prepare(prompt, SamplingParams(**params))
    assert error.value.param == field


@pytest.mark.parametrize(("asked", "given"), [(None, 98), (5, 5), (1000, 98)])
def test_there_are_as_many_tokens_as_there_is_room_for(asked: int | None, given: int) -> None:
    prepared = PREPARER.prepare("ab", SamplingParams(max_tokens=asked))
    assert prepared.requests[0].max_tokens == given


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    assert PREPARER.prepare([1] * 99, SamplingParams()).requests[0].max_tokens == 1


def test_ids_are_our_own_and_seeds_differ() -> None:
    first, second = (PREPARER.prepare("a", SamplingParams()).requests[0] for _ in range(2))
    assert first.id != second.id
    assert first.seed != second.seed
    assert PREPARER.prepare("a", SamplingParams(seed=-3)).requests[0].seed == -3
    ids = [each.id for each in PREPARER.prepare("a", SamplingParams(n=3)).requests]
    assert len(set(ids)) == 3


def test_end_tokens_stop_unless_they_are_to_be_ignored() -> None:
    made = tokenizer()
    made.eos_token_ids = frozenset([9])
    preparer = Preparer(made, 100)
    assert preparer.prepare("a", SamplingParams(stop_token_ids=(7,))).requests[0].stop_token_ids == (7, 9)
    assert preparer.prepare("a", SamplingParams(ignore_eos=True)).requests[0].stop_token_ids == ()


def test_the_model_s_vocabulary_counts() -> None:
    """An id beyond the embedding would end a rank; one that only the model has is none of the tokenizer's business."""
    made = tokenizer()
    made.eos_token_ids = frozenset([9, 255])
    smaller, larger = Preparer(made, 100, 190), Preparer(made, 100, 300)
    for params in (SamplingParams(stop_token_ids=(190,)), SamplingParams(logit_bias={190: 1.0})):
        with pytest.raises(BadRequest, match="does not have: 190; its ids are 0 to 189"):
            smaller.prepare("a", params)
    text = next(text for text in map(chr, range(0x80, 0x100)) if max(made.encode(text)) >= 190)
    for prompt in ([190], text):
        with pytest.raises(BadRequest, match="its ids are 0 to 189"):
            smaller.prepare(prompt, SamplingParams())
    assert smaller.prepare("a", SamplingParams()).requests[0].stop_token_ids == (9,)
    assert larger.prepare([299], SamplingParams()).requests[0].prompt == [299]


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 2.5},
        {"n": True},
        {"logit_bias": {"5": 1.0}},
        {"stop_token_ids": ("a",)},
        {"stop": "half \ud800"},
        {"structured": StructuredOutput(json_schema={"type": "object", 5: 6})},  # type: ignore[dict-item]  # on purpose
    ],
)
def test_what_a_rank_could_not_read_is_not_sent(params: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        PREPARER.prepare("a", SamplingParams(**params))


@pytest.mark.parametrize(
    ("params", "beside", "field"),
    [
        (SamplingParams(), {"priority": 1 << 70}, "priority"),
        (SamplingParams(), {"cache_salt": "half \ud800"}, "cache_salt"),
        (SamplingParams(stop=("half \ud800",)), {}, "stop"),
    ],
)
def test_the_field_is_told_that_a_rank_could_not_read(
    params: SamplingParams, beside: dict[str, Any], field: str
) -> None:
    """An event that is numbered and cannot be sent is a gap in the log, and the end of its group."""
    with pytest.raises(BadRequest) as error:
        PREPARER.prepare("a", params, **beside)
    assert error.value.param == field


def test_arrays_are_prompts() -> None:
    prompt = PREPARER.prepare(np.array([1, 2]), SamplingParams()).requests[0].prompt  # type: ignore[arg-type]  # callers do
    assert [type(id) for id in prompt] == [int, int]


def test_seeds_wrap_around() -> None:
    most = (1 << 63) - 1
    seeds = [each.seed for each in PREPARER.prepare("a", SamplingParams(n=2, seed=most)).requests]
    assert seeds == [most, -most - 1]


def test_only_what_wants_prompt_logprobs_has_a_cache_of_its_own() -> None:
    assert PREPARER.prepare("a", SamplingParams()).requests[0].cache_salt == ""
    salts = {PREPARER.prepare("a", SamplingParams(prompt_logprobs=0)).requests[0].cache_salt for _ in range(2)}
    assert len(salts) == 2


def test_a_client_s_salt_is_nobody_else_s() -> None:
    salts = [PREPARER.prepare("a", SamplingParams(), cache_salt=salt).requests[0].cache_salt for salt in ("", "x", "x")]
    assert salts[0] == ""
    assert salts[1] == salts[2] != ""
    own = PREPARER.prepare("a", SamplingParams(prompt_logprobs=0)).requests[0]
    assert PREPARER.prepare("a", SamplingParams(), cache_salt=own.cache_salt).requests[0].cache_salt != own.cache_salt
