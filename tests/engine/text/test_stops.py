"""Stop strings against str.find."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat_engine.text.stops import MAX_STOP_CHARS, StopStrings, stop_strings
from onbeat_engine.wire.errors import BadRequest

STOPS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4)


@given(STOPS, st.text("abc", max_size=30))
def test_every_character(stops: list[str], text: str) -> None:
    """At every character: the longest stop string that ends there, and the longest end that may become one."""
    automaton = StopStrings(stops)
    node = StopStrings.ROOT
    for end in range(1, len(text) + 1):
        node = automaton.step(node, text[end - 1])
        seen = text[:end]
        assert automaton.matched[node] == max((len(stop) for stop in stops if seen.endswith(stop)), default=0)
        starts = {stop[:length] for stop in stops for length in range(1, len(stop))}
        assert automaton.held[node] == max((len(start) for start in starts if seen.endswith(start)), default=0)


def test_too_long() -> None:
    StopStrings(["x" * MAX_STOP_CHARS])
    with pytest.raises(BadRequest, match="stop has 4097 characters"):
        StopStrings(["x" * MAX_STOP_CHARS, "y"])


def test_shared() -> None:
    assert stop_strings(("a", "b")) is stop_strings(("a", "b"))
