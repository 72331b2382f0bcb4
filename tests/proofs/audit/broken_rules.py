"""Schedulers whose policy has one fault each; see `broken.py`."""

from typing import ClassVar

from onbeat_reference import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy, is_decode


class _Ruled(Scheduler):
    """A scheduler that has its own policy."""

    rules: ClassVar[type[Policy]] = Policy

    def __init__(self, config: Config, policy: Policy | None = None) -> None:
        super().__init__(config, self.rules())


class PromisesIgnored(_Ruled):
    """B60: loads are admitted beside what others were promised."""

    class rules(Policy):
        def fits_whole(self, *, needed: int, free: int, promised: int) -> bool:
            return needed <= free


class FlagOnEviction(_Ruled):
    """B03: a step that preempts writes the saturation flag."""

    class rules(Policy):
        def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
            return open and not hold


class AnyDecodeHolds(_Ruled):
    """B07: a decode that cannot run is a reason to hold, whatever comes of it."""

    class rules(Policy):
        def lifts(self, num_scheduled: int) -> bool:
            return False

        def justifies_hold(self, *, work: int, can_run: bool) -> bool:
            return is_decode(work)


class HoldStands(_Ruled):
    """B07: a hold is never lifted, even if it leaves the step empty."""

    class rules(Policy):
        def lifts(self, num_scheduled: int) -> bool:
            return False


class HoldsForEver(_Ruled):
    """B08: vetoes have no bound."""

    class rules(Policy):
        def may_hold(self, *, throttle: bool, saturated: bool, held_steps: int, max_hold_steps: int) -> bool:
            return throttle and not saturated


class NoEscape(_Ruled):
    """B23: saturated or not, the throttle stands."""

    class rules(Policy):
        def may_hold(self, *, throttle: bool, saturated: bool, held_steps: int, max_hold_steps: int) -> bool:
            return throttle and held_steps < max_hold_steps


class HoldsOneToken(_Ruled):
    """B01: a request with nothing left to prefill is held, since nothing of it is computed yet."""

    class rules(Policy):
        def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
            return computed == 0 and external == 0


class StopsAtHeld(_Ruled):
    """The scan stops at the first request held, whatever stands behind it."""

    class rules(Policy):
        def scans_past_held(self) -> bool:
            return False


class HoldsDecodes(_Ruled):
    """B24: the hold passes over decodes as well."""

    class rules(Policy):
        def lifts(self, num_scheduled: int) -> bool:
            return False

        def holds_running(self, work: int) -> bool:
            return True


class PrefillFirst(_Ruled):
    """B19: a chunk takes the tokens that decodes behind it are owed."""

    class rules(Policy):
        def chunk_budget(self, *, budget: int, owed: int) -> int:
            return budget
