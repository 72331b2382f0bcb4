"""Groups of real processes: what they agree on, and what becomes of them when a rank dies or hangs."""

import os
import signal
import time
from typing import Any

import pytest
import torch

from onbeat_engine.parallel.group import Group, Through, TokensByRank
from onbeat_engine.parallel.place import GroupPlace, agree, meet
from onbeat_engine.wire.errors import EngineDead
from onbeat_spec.errors import ConfigError
from onbeat_spec.protocol import Agreement, GroupSettings, Vote, tally
from tests.engine.parallel.ranks import join, run, well

LIMIT = 1.0

VOTES = [
    [Vote(3, False), Vote(3, False), Vote(3, False)],
    [Vote(0, False), Vote(7, True), Vote(2, False)],
    [Vote(1 << 40, True), Vote(5, True), Vote(6, True)],
    [Vote(5, False), Vote(4, False), Vote(4, False)],
]


def exchanges(place: GroupPlace, through: Through) -> tuple[list[Agreement], list[TokensByRank], int, int]:
    group = join(place, through=through, model="m")
    agreed = [group.exchange(votes[place.rank]) for votes in VOTES]
    shapes = [group.forward_shape(place.rank * 3, replays) for replays in (True, place.rank != 1)]
    group.close()
    group.close()
    return agreed, shapes, group.exchanges, group.forwards


@pytest.mark.parametrize("through", ["memory", "gloo"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_exchange_is_the_tally_of_all_votes(size: int, through: Through) -> None:
    for agreed, shapes, exchanged, forwards in well(run(size, exchanges, through)):
        assert agreed == [tally(votes[:size]) for votes in VOTES]
        tokens = (0, 3, 6)[:size]
        assert shapes == [TokensByRank(tokens, True), TokensByRank(tokens, size == 1)]
        assert shapes[0].padded == tokens[-1]
        assert (exchanged, forwards) == (len(VOTES), 2)


def start(place: GroupPlace, by_rank: list[tuple[GroupSettings, dict[str, Any]]]) -> None:
    settings, shared = by_rank[place.rank]
    join(place, settings, **shared)


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ((GroupSettings(4, 4), {"model": "a"}), r"differ in \(interval, sync\).*\(2, 4\).*\(4, 4\)"),
        ((GroupSettings(2, 4), {"model": "b"}), r"differ in model .*rank 0: 'a', rank 1: 'b', rank 2: 'a'"),
        ((GroupSettings(2, 4), {"model": "a", "experts": [1, 3]}), r"differ in experts .*rank 1: \[1, 3\]"),
    ],
)
def test_ranks_that_were_started_differently_are_refused_on_all(second: Any, says: str) -> None:
    first = (GroupSettings(2, 4), {"model": "a"})
    for error in run(3, start, [first, second, first]):
        assert isinstance(error, ConfigError)
        with pytest.raises(ConfigError, match=says):
            raise error


def on_a_gpu(place: GroupPlace, devices: list[str]) -> None:
    with_store = meet(place, 20.0)
    agree(place, with_store, GroupSettings(), {}, 20.0, device=devices[place.rank])


def test_no_two_ranks_have_one_gpu() -> None:
    assert well(run(2, on_a_gpu, ["cuda:0", "cuda:1"])) == [None, None]
    for error in run(2, on_a_gpu, ["cuda:0", "cuda:0"]):
        assert isinstance(error, ConfigError)
        assert "ranks 0 and 1 of a group share cuda:0" in str(error)


def fault(place: GroupPlace, how: str, through: Through) -> tuple[str, str, float]:
    group = join(place, through=through, timeout=LIMIT)
    group.exchange(Vote(1, True))
    if place.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2 * LIMIT)
        os._exit(0)
    began = time.monotonic()
    said = []
    for _ in range(2):
        try:
            group.forward_shape(1)
        except EngineDead as error:
            said.append(str(error))
    group.close()
    return said[0], said[1], time.monotonic() - began


@pytest.mark.parametrize("through", ["memory", "gloo"])
@pytest.mark.parametrize(
    ("how", "says", "bound"),
    [("killed", "rank 1 (process ", 1.0), ("hung", f"does not answer (the limit is {LIMIT:g} s)", LIMIT + 1.0)],
)
def test_a_rank_that_dies_or_hangs_is_an_error_on_all_others_in_time(
    how: str, says: str, bound: float, through: Through
) -> None:
    first, died, third = well(run(3, fault, how, through))
    assert died is None
    for said, again, seconds in (first, third):
        assert said.startswith("a forward of rank ")
        assert says in said
        assert again == said
        assert seconds < bound


def apart(place: GroupPlace) -> None:
    group = join(place)
    if place.rank == 0:
        group.exchange(Vote(1, True))
    else:
        group.forward_shape(4)


def test_ranks_in_different_collectives_are_told_so() -> None:
    for rank, error in enumerate(run(2, apart)):
        assert isinstance(error, EngineDead)
        other, own = ("a forward", "an exchange") if rank == 0 else ("an exchange", "a forward")
        assert str(error) == f"rank {1 - rank} is in {other}, its number 1, rank {rank} in {own}, its number 1"


def further_apart(place: GroupPlace) -> None:
    group = join(place)
    if place.rank == 0:
        group.all_gather(torch.empty(4, 8), torch.zeros(2, 8), (2, 2))
    else:
        group.forward_shape(4)


def test_ranks_of_which_one_is_in_a_layer_are_told_so() -> None:
    for rank, error in enumerate(run(2, further_apart)):
        assert isinstance(error, EngineDead)
        assert f"rank {1 - rank} is in another collective" in str(error)


def late(place: GroupPlace) -> None:
    if place.rank == 0:
        Group.join(place, GroupSettings(), {}, start_timeout=0.5)


def test_a_rank_that_never_comes_is_an_error() -> None:
    error, _ = run(2, late)
    assert isinstance(error, EngineDead)
    assert "rank 0 of 2 waited 0.5 s for rank 1 to start" in str(error)


def works(place: GroupPlace) -> None:
    group = join(place, timeout=0.5)
    group.exchange(Vote(1, True))
    end = time.monotonic() + 1.2
    while place.rank == 1 and time.monotonic() < end:
        pass
    group.exchange(Vote(1, True))
    group.close()


def test_a_rank_that_is_late_because_it_works_is_waited_for() -> None:
    """One that is late and does nothing is not; see above."""
    assert well(run(2, works)) == [None] * 2
