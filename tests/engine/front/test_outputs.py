"""What a caller gets, built from outputs of ranks."""

from typing import Any

import pytest

from onbeat_engine.front.outputs import Logprob, RequestState
from onbeat_engine.front.preparing import Preparer
from onbeat_engine.testing.fake import tokenizer
from onbeat_engine.wire.messages import Output, TokenLogprobs
from onbeat_engine.wire.params import SamplingParams

BYTES = tokenizer()


def state(prompt: str = "ab", **params: Any) -> RequestState:
    prepared = Preparer(BYTES, 100).prepare(prompt, SamplingParams(**params))
    return RequestState("client's", prepared, BYTES)


def told(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -0.5, 2, (65, token), (-0.25, -0.5))


def test_cumulative_outputs_hold_all_so_far() -> None:
    made = state()
    assert made.take("cumulative") is None
    made.push(Output(id="r1", tokens=list(b"x"), num_cached_tokens=16))
    first = made.take("cumulative")
    assert made.take("cumulative") is None
    made.push(Output(id="r1", tokens=list(b"y")))
    made.push(Output(id="r1", tokens=list(b"z"), finish_reason="length"))
    last = made.take("cumulative")
    assert first is not None
    assert last is not None
    assert (first.outputs[0].text, first.finished, first.num_cached_tokens) == ("x", False, 16)
    assert (last.outputs[0].text, last.finished, last.outputs[0].finish_reason) == ("xyz", True, "length")
    assert (last.request_id, last.prompt, last.prompt_token_ids) == ("client's", "ab", list(b"ab"))
    assert last.arrival_time <= last.first_token_time <= last.finished_time


def test_deltas_merge_what_nobody_read_and_keep_text_and_ids_together() -> None:
    """Case B98 and B99: what may become a stop string waits, with its ids."""
    made = state(stop=("yzz",))
    seen = []
    for byte in b"xyzab":
        made.push(Output(id="r1", tokens=[byte]))
        output = made.take("delta")
        if output is not None:
            seen.append((output.outputs[0].text, bytes(output.outputs[0].token_ids)))
    assert seen == [("x", b"x"), ("yza", b"yza"), ("b", b"b")]


def test_a_stop_string_ends_the_request_here_first() -> None:
    made = state(stop=("END",), logprobs=1)
    stopped = [
        made.push(Output(id="r1", tokens=list(text), logprobs=[told(each) for each in text]))
        for text in (b"one E", b"N", b"D and more")
    ]
    assert stopped == [False, False, True]
    assert made.push(Output(id="r1", tokens=[65], finish_reason="abort")) is False
    output = made.take("final")
    assert output is not None
    only = output.outputs[0]
    assert (only.text, only.finish_reason, only.stop_reason) == ("one ", "stop", "END")
    assert bytes(only.token_ids) == b"one END"
    assert only.logprobs is not None
    assert len(only.logprobs) == 7
    assert only.logprobs[0] == {111: Logprob(-0.5, 2, "o"), 65: Logprob(-0.25, 1, "A")}


def test_a_stop_string_in_the_last_token_is_no_news_to_the_rank() -> None:
    made = state(stop=("b",))
    assert made.push(Output(id="r1", tokens=list(b"ab"), finish_reason="length")) is False
    output = made.take("final")
    assert output is not None
    assert (output.outputs[0].finish_reason, output.outputs[0].text) == ("stop", "a")


@pytest.mark.parametrize(("included", "text"), [(False, "ab"), (True, "ab.")])
def test_a_stop_token_ends_and_is_named(included: bool, text: str) -> None:
    made = state(stop_token_ids=(46,), include_stop_str_in_output=included)
    made.push(Output(id="r1", tokens=list(b"ab.")[:2]))
    made.push(Output(id="r1", tokens=[46], finish_reason="stop", stop_token=46))
    output = made.take("cumulative")
    assert output is not None
    only = output.outputs[0]
    assert (only.text, only.stop_reason, bytes(only.token_ids)) == (text, 46, b"ab.")


def test_every_completion_ends_by_itself() -> None:
    """Case B102."""
    made = state(n=2, seed=7)
    first, second = made.prepared.requests
    assert (first.seed, second.seed, first.params.seed, second.params.seed) == (7, 8, 7, 8)
    made.push(Output(id=first.id, tokens=[65], finish_reason="length"))
    assert made.unfinished_ids == [second.id]
    delta = made.take("delta")
    assert delta is not None
    assert [(each.index, each.finished) for each in delta.outputs] == [(0, True)]
    assert not delta.finished
    made.push(Output(id=second.id, tokens=[66]))
    delta = made.take("delta")
    assert delta is not None
    assert [(each.index, each.text) for each in delta.outputs] == [(1, "B")]
    made.push(Output(id=second.id, tokens=[], finish_reason="error", error="killed"))
    final = made.take("final")
    assert final is not None
    assert final.finished
    assert [(each.finish_reason, each.error) for each in final.outputs] == [("length", None), ("error", "killed")]


def test_prompt_logprobs_have_an_entry_for_each_token() -> None:
    """Case B109."""
    made = state("abc", prompt_logprobs=1, n=2)
    ids = [each.id for each in made.prepared.requests]
    assert [each.params.prompt_logprobs for each in made.prepared.requests] == [1, None]
    assert made.prepared.requests[0].cache_salt
    made.push(Output(id=ids[0], tokens=[65], prompt_logprobs=[told(98), told(99)]))
    delta = made.take("delta")
    made.push(Output(id=ids[0], tokens=[65]))
    later = made.take("delta")
    whole = made.take("cumulative")
    assert delta is not None
    assert later is not None
    assert delta.prompt_logprobs is not None
    assert [each and next(iter(each)) for each in delta.prompt_logprobs] == [None, 98, 99]
    assert later.prompt_logprobs is None
    assert whole is None
    single = state("a", prompt_logprobs=0)
    single.push(Output(id="r1", tokens=[65]))
    output = single.take("delta")
    assert output is not None
    assert output.prompt_logprobs == [None]


def test_a_refusal_is_remembered() -> None:
    made = state()
    made.push(Output(id="r1", finish_reason="error", error="can never fit", refused=True))
    assert made.refused == "can never fit"
    assert made.finished
