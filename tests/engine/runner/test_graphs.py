"""The ladder of graph sizes, and which one serves a step."""

from typing import Any

from onbeat_engine.runner.graphs import Captured, DecodeGraphs, Forward, ladder, size_for


def test_ladder_ends_at_the_most_rows() -> None:
    assert ladder(1) == [1]
    assert ladder(5) == [1, 2, 4, 5]
    assert ladder(8) == [1, 2, 4, 8]
    assert ladder(256)[-2:] == [248, 256]
    assert ladder(300)[-3:] == [272, 288, 300]
    assert ladder(5000)[-1] == 512


def test_largest_first_and_the_smallest_that_holds() -> None:
    order: list[int] = []
    replayed: list[int] = []

    def capture(forward: Forward) -> Captured:
        size: Any = forward()
        order.append(size)
        return Captured(lambda: replayed.append(size), f"logits of {size}")

    graphs = DecodeGraphs([1, 2, 4], lambda size: lambda: size, capture)
    assert order == [4, 2, 1]
    assert [size_for([1, 2, 4], rows) for rows in range(6)] == [1, 1, 2, 4, 4, 0]
    assert graphs.replay(2) == "logits of 2"
    assert replayed == [2]
