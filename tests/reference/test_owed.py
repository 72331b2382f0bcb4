"""What chunks owe to the decodes behind them: counted in one pass, and the same as by its definition."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from benchmarks._chunks import Recounts
from onbeat_reference import Request, Scheduler
from onbeat_spec.config import Config
from tests.reference.helpers import examples, request, scheduler, turn, turns
from tests.reference.histories import CONFIGS, SEQUENCES, Run


class Both(Recounts):
    """Counts by the definition, and sees that one pass gives the same."""

    def _owed(self, behind: deque[Request], now: int) -> int:
        plain = super()._owed(behind, now)
        assert Scheduler._owed(self, behind, now) == plain
        return plain


@given(CONFIGS, SEQUENCES, st.booleans())
@examples(200)
def test_one_pass_counts_as_the_definition_does(
    config: Config, sequence: list[tuple[str, int]], by_clock: bool
) -> None:
    run = Run(Both, config, by_clock, 4)
    for what, number in sequence:
        run.apply(what, number)
    run.drain()


def test_a_chunk_does_not_leave_tokens_to_decodes_in_front_of_it() -> None:
    """Chunk, decode, chunk, decode under priorities: the second chunk owes one token, not two."""
    sizes = {"max_num_batched_tokens": 10, "long_prefill_token_threshold": 5}
    made = scheduler(request("d1", 2, priority=1), request("d3", 2, priority=3), scheduling="priority", **sizes)
    turn(made)
    made.add_request(request("c0", 30, priority=0))
    made.add_request(request("c2", 30, priority=2))
    assert turns(made, 2)[1] == {"c0": 5, "d1": 1, "c2": 3, "d3": 1}


def test_every_chunk_is_looked_at_once() -> None:
    """The decodes are listed once a step, however many chunks there are."""

    class Lists(Scheduler):
        listed = 0

        def _decodes(self, requests: object, now: int) -> deque[Request]:
            self.listed += 1
            return super()._decodes(requests, now)  # type: ignore[arg-type]  # what the scheduler passes

    made = Lists(Config(long_prefill_token_threshold=2))
    for number in range(9):
        made.add_request(request(f"r{number}", 20))
    turn(made)
    assert made.listed == 0
    turn(made)
    assert made.listed == 1
