"""What one rank of a lock-step group says of its turns: to its trace, and to the front end, which watches the group."""

import time

from onbeat_engine.rank.reporting import Reporter
from onbeat_reference.recorder import Recorder
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.protocol import Turn, collectives
from onbeat_spec.records import Filler, LockStep, Member, Step


class GroupTurns:
    """Numbers the turns of a rank: all ranks of a group take the same ones.

    Args:
        scheduler: the rank's.
        recorder: writes the rank's trace, if there is one.
        reporter: tells the front end; None: the group is not watched.
    """

    def __init__(self, scheduler: Scheduler, recorder: Recorder | None, reporter: Reporter | None) -> None:
        self._scheduler = scheduler
        self._recorder = recorder
        self._reporter = reporter
        self._number = 0
        self._began = 0.0
        self._ran: list[str] = []

    def begins(self) -> None:
        """A turn begins."""
        self._began = time.monotonic()
        self._ran.clear()

    def ran(self, collective: str) -> None:
        """The rank has taken part in a collective, or begun to, in this turn."""
        self._ran.append(collective)

    def steps(self, turn: Turn) -> LockStep:
        """The scheduler's next step is this turn; return which that is.

        Its record is written before it runs: the collectives in it are those that the protocol has it take part in.
        """
        lock = self._lock(turn, collectives(turn, 0))
        if self._recorder is not None:
            self._recorder.lock = lock
        return lock

    def stepped(self, turn: Turn, step: Step, *, may_run: bool) -> None:
        """It was begun.

        Args:
            may_run: `protocol.may_run`, likewise below.
        """
        self._tell(self._lock(turn, tuple(self._ran)), sum(step.scheduled.values()), may_run)
        self._number += 1

    def took_part(
        self, turn: Turn, *, last: bool, may_run: bool, filler: Filler | None = None
    ) -> tuple[LockStep, float]:
        """This turn went without the scheduler: an exchange, or a dummy; return which it is, and its seconds."""
        lock = self._lock(turn, tuple(self._ran), last)._replace(filler=filler)
        took = time.monotonic() - self._began
        if self._recorder is not None:
            self._recorder.took_part(lock, took)
        self._tell(lock, 0, may_run, dummy=turn.kind == "dummy")
        self._number += 1
        return lock, took

    def _lock(self, turn: Turn, calls: tuple[str, ...], last: bool = False) -> LockStep:
        # An exchange has no phase: nothing is scheduled in it.
        return LockStep(self._number, None if turn.vote is not None else turn.phase, calls, last)

    def _tell(self, lock: LockStep, tokens: int, may_run: bool, *, dummy: bool = False) -> None:
        if self._reporter is not None:
            member = Member(lock, tokens, may_run, len(self._scheduler.requests), dummy)
            self._reporter.lock_steps.append(member)
