"""Loads cost no tokens: they start when the budget is used up, and leave room for everybody whom they pass."""

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from onbeat_reference import Request, Scheduler
from onbeat_reference.lifecycle import InFlight
from onbeat_spec.config import Config
from tests.reference.helpers import examples, ids, request, scheduler, turn
from tests.reference.histories import CONFIGS, SEQUENCES, Run


class LeavesRoom(Scheduler):
    """Sees after every scan that all who were passed over for tokens in front of a load still have room, together."""

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        super()._scan(flight, requests, hold)
        step = flight.step
        last = max((at for at, each in enumerate(requests) if each.id in step.loading), default=0)
        slots = blocks = 0
        for each in requests[:last]:
            if each.id in step.held or each.eligible_at > step.index or each not in self.waiting or each.num_blocks:
                continue
            event("a load passed somebody")
            assert step.budget == 0
            self.pool.match(each)
            needed = self._needs(each, each.remote_tokens > 0)
            assert self._has_room(each, needed, slots, blocks), (each, step)
            slots, blocks = slots + 1, blocks + needed


@given(CONFIGS, SEQUENCES, st.booleans())
@examples(500)
def test_whom_a_load_passes_keeps_its_room(config: Config, sequence: list[tuple[str, int]], by_clock: bool) -> None:
    run = Run(LeavesRoom, config, by_clock, 4)
    for what, number in sequence:
        run.apply(what, number)
    run.drain()


@pytest.mark.parametrize(
    ("num_blocks", "max_num_seqs", "loading"),
    [(10, 9, ["r", "s"]), (9, 9, ["r"]), (8, 9, ["r"]), (7, 9, []), (10, 5, ["r", "s"]), (10, 4, ["r"]), (10, 3, [])],
)
def test_slots_and_blocks_are_kept_for_everybody_who_was_passed(
    num_blocks: int, max_num_seqs: int, loading: list[str]
) -> None:
    """Each needs two blocks and a slot: first the one that runs, then the two that lack tokens, then the loads."""
    made = scheduler(
        *[request(id, 8, 1) for id in ("a", "b", "c")],
        *[request(id, 5, 1, remote=4) for id in ("r", "s")],
        max_num_batched_tokens=4,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
    )
    step = turn(made)
    assert (step.scheduled, step.loading) == ({"a": 4}, loading)
    assert ids(made.waiting) == [id for id in "bcrs" if id not in loading]


@pytest.mark.parametrize(("mode", "remote", "over"), [("async", 1, False), ("sync", 4, True)])
def test_the_scan_goes_on_for_loads_beforehand_only(mode: Literal["async", "sync"], remote: int, over: bool) -> None:
    """A load within the step comes with an admission, and that needs tokens."""
    made = scheduler(
        request("a", 8),
        request("b", 8),
        request("r", 8, remote=remote, mode=mode),
        request("c", 8),
        max_num_batched_tokens=4,
    )
    step = turn(made)
    assert (step.loading, step.scan_over) == ([] if over else ["r"], over)


def test_a_landed_load_needs_what_it_was_promised() -> None:
    """Also if nothing of it was valid: its promise stands until it is let in."""
    r = request("r", 8, remote=4)
    made = scheduler(r)
    turn(made)
    made.load_failed(r, 0)
    assert (r.num_blocks, r.reserved, made._needs(r, False)) == (1, 2, 2)


def test_without_a_load_to_start_the_scan_ends_with_the_budget() -> None:
    class Looks(Scheduler):
        looked = 0

        def _needs(self, request: Request, loads: bool) -> int:
            self.looked += 1
            return super()._needs(request, loads)

    made = Looks(Config(max_num_batched_tokens=4))
    for number in range(9):
        made.add_request(request(f"r{number}", 4))
    assert turn(made).scan_over
    assert made.looked == 2
