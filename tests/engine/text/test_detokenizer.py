"""The detokenizer: against decoding everything at once, against str.find, and the public cases."""

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_engine.text.detokenizer import Chunk, Detokenizer
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.params import SamplingParams
from tests.engine.text.tiny import Pieces, smollm2, tiny


def run(
    tokenizer: Tokenizer, ids: Sequence[int], params: SamplingParams, *, sizes: Sequence[int] = (1,)
) -> list[Chunk]:
    """Feed ids in, so many at a time, in turn; return all chunks."""
    detokenizer = Detokenizer(tokenizer, params)
    chunks = []
    start = turn = 0
    while start < len(ids) and not detokenizer.ended:
        size = sizes[turn % len(sizes)]
        chunks.append(detokenizer.update(ids[start : start + size], finished=start + size >= len(ids)))
        start += size
        turn += 1
    assert detokenizer.text == "".join(chunk.text for chunk in chunks)
    return chunks


def whole_characters(tokenizer: Tokenizer, ids: Sequence[int], *, skip: bool) -> None:
    params = SamplingParams(skip_special_tokens=skip)
    chunks = run(tokenizer, ids, params)
    full = tokenizer.decode(ids, skip_special_tokens=skip, after_text=True)
    assert "".join(chunk.text for chunk in chunks) == full
    assert [id for chunk in chunks for id in chunk.token_ids] == list(ids)
    for chunk in chunks:
        assert chunk.text == tokenizer.decode(chunk.token_ids, skip_special_tokens=skip, after_text=True)
    for chunk in chunks[:-1]:
        assert not chunk.text.endswith("\ufffd")


@given(st.lists(st.integers(0, 263), max_size=40), st.booleans())
def test_any_bytes(ids: list[int], skip: bool) -> None:
    whole_characters(tiny(), ids, skip=skip)


@given(st.text(max_size=20), st.booleans())
def test_any_text(text: str, skip: bool) -> None:
    ids = tiny().encode(text)
    whole_characters(tiny(), ids, skip=skip)
    assert tiny().decode(ids, skip_special_tokens=False) == text


@settings(deadline=None)
@given(st.lists(st.integers(0, 49151), max_size=40), st.booleans())
def test_any_tokens_of_smollm2(ids: list[int], skip: bool) -> None:
    whole_characters(smollm2(), ids, skip=skip)


def test_character_of_four_tokens() -> None:
    chunks = run(Pieces(b"\xf0", b"\x9f", b"\x98", b"\x80", "!"), [0, 1, 2, 3, 4], SamplingParams())
    assert [chunk.text for chunk in chunks] == ["", "", "", "\N{GRINNING FACE}", "!"]
    assert chunks[3].token_ids == [0, 1, 2, 3]


def test_character_cut_by_the_end() -> None:
    chunks = run(Pieces("a", b"\xf0\x9f"), [0, 1], SamplingParams())
    assert chunks == [Chunk("a", [0]), Chunk("\ufffd", [1])]


@given(
    st.lists(st.text("ab,é", max_size=4), max_size=12),
    st.lists(st.text("ab,é", min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 5),
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_stop_strings(pieces: list[str], stops: list[str], include: bool, least: int, sizes: list[int]) -> None:
    """The first to end, the longest of those, beyond the first tokens; as many tokens as it took."""
    params = SamplingParams(stop=tuple(stops), include_stop_str_in_output=include, min_tokens=least, max_tokens=100)
    chunks = run(Pieces(*pieces), range(len(pieces)), params, sizes=sizes)
    text = "".join(pieces)
    beyond = len("".join(pieces[:least]))
    ends = [
        (at + len(stop), at)
        for stop in stops
        for at in range(len(text))
        if text.startswith(stop, at) and at + len(stop) > beyond
    ]
    told = "".join(chunk.text for chunk in chunks)
    ids = [id for chunk in chunks for id in chunk.token_ids]
    if not ends:
        assert (told, ids) == (text, list(range(len(pieces))))
        assert all(chunk.stop is None for chunk in chunks)
        whole = chunks
    else:
        end, begin = min(ends)
        assert told == text[: end if include else begin]
        assert chunks[-1].stop == text[begin:end]
        count = next(n for n in range(len(pieces) + 1) if len("".join(pieces[:n])) >= end)
        assert ids == list(range(count))
        whole = chunks[:-1]
    for chunk in whole:
        assert chunk.text == "".join(pieces[id] for id in chunk.token_ids)


@given(st.text("ab", max_size=30), st.data())
def test_stop_does_not_depend_on_the_split(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
    stops = ("abba", "bb", "babab")
    told = "".join(c.text for c in run(Pieces(*pieces), range(len(pieces)), SamplingParams(stop=stops)))
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    assert told == (text[: min(found)[1]] if found else text)


def test_stop_that_never_shows() -> None:
    """Case B98: nothing of it is told."""
    params = SamplingParams(stop=("DEFGHIJ",))
    chunks = run(Pieces("DEF", "G", "HI", "J"), [0, 1, 2, 3], params)
    assert chunks == [Chunk("", [])] * 3 + [Chunk("", [0, 1, 2, 3], "DEFGHIJ")]
    detokenizer = Detokenizer(Pieces("DEF", "G", "HI", "K"), params)
    assert [detokenizer.update([id]) for id in range(4)] == [Chunk("", [])] * 3 + [Chunk("DEFGHIK", [0, 1, 2, 3])]


def test_pieces_stay_whole() -> None:
    """Case B99: what waits is told in whole pieces, with the ids that wrote them."""
    params = SamplingParams(stop=("b,c",))
    pieces = ("a", "</think>", "x", "ab", "x")
    chunks = run(Pieces(*pieces), range(5), params)
    assert chunks == [Chunk("a", [0]), Chunk("</think>", [1]), Chunk("x", [2]), Chunk("", []), Chunk("abx", [3, 4])]


@pytest.mark.parametrize(
    ("include", "skip", "text"), [(False, True, "a"), (True, True, "a"), (True, False, "a<|end|>")]
)
def test_stop_token(include: bool, skip: bool, text: str) -> None:
    params = SamplingParams(include_stop_str_in_output=include, skip_special_tokens=skip)
    detokenizer = Detokenizer(tiny(), params)
    assert detokenizer.update([97, 257], stop_token=True) == Chunk(text, [97, 257])
    assert detokenizer.ended


def test_stop_token_that_is_an_ordinary_one() -> None:
    detokenizer = Detokenizer(tiny(), SamplingParams(skip_special_tokens=False))
    assert detokenizer.update([97, 98], stop_token=True) == Chunk("a", [97, 98])


def test_nothing_after_a_stop() -> None:
    detokenizer = Detokenizer(tiny(), SamplingParams(stop=("b",)))
    assert detokenizer.update([97, 98, 99]) == Chunk("a", [97, 98], "b")
    assert detokenizer.num_tokens == 2
    assert detokenizer.update([99], finished=True) == Chunk("", [])


def test_half_a_stop_is_told_at_the_end() -> None:
    detokenizer = Detokenizer(tiny(), SamplingParams(stop=("bc",)))
    assert detokenizer.update([97, 98]) == Chunk("a", [97])
    assert detokenizer.update([], finished=True) == Chunk("b", [98])


def test_time_does_not_grow_with_the_text() -> None:
    """The last thousand of many tokens take as long as the first, also where everything is held back."""
    for params, pieces in ((SamplingParams(stop=("x" * 50,)), ("x" * 3, "y")), (SamplingParams(), (b"\x80", "y"))):
        detokenizer = Detokenizer(Pieces(*pieces), params)
        times = []
        for _ in range(20):
            begin = time.perf_counter()
            for _ in range(1000):
                detokenizer.update([0, 0, 1] if params.stop else [0])
            times.append(time.perf_counter() - begin)
        assert min(times[-5:]) < 5 * min(times[:5])
