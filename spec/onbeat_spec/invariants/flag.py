"""The saturation flag: which steps write it, what it means, and how late it may be."""

from collections.abc import Sequence

from onbeat_spec.catalogue import History, Invariant, Premise, Verdict
from onbeat_spec.config import Config
from onbeat_spec.invariants.words import called
from onbeat_spec.records import Facts

HELD_PREEMPTED_OR_PAUSED = Premise(
    "a step held, preempted or was paused", step=lambda facts: not facts.step.offers_admission
)

flag_only_when_open = Invariant(
    "flag-only-when-open",
    "The saturation flag changes only in a step that did not hold, did not preempt, and was not paused.",
    HELD_PREEMPTED_OR_PAUSED,
    cases=("B03",),
    in_traces=HELD_PREEMPTED_OR_PAUSED,
    witness=lambda throttled, unthrottled: unthrottled.step.wrote_flag and throttled.step.hold,
)


@flag_only_when_open.over("step")
def changes_only_when_open(facts: Facts) -> Verdict:
    """Compare the flag on both sides of the step."""
    step = facts.step
    if facts.after.saturated == facts.before.saturated:
        return None
    for closed, why in ((step.hold, "held"), (bool(step.evictions), "preempted"), (not step.open, "was paused")):
        if closed:
            return f"the flag became {bool(facts.after.saturated)} in a step that {why}"
    return None


RAISED = Premise(
    "a step wrote the flag with work left waiting",
    step=lambda facts: facts.step.wrote_flag and facts.after.saturated,
)

flag_means_backlog = Invariant(
    "flag-means-backlog",
    "The saturation flag is true iff admissible work was left by the step that wrote it.",
    RAISED,
    cases=("B02", "B13"),
    in_traces=RAISED,
    witness=lambda throttled, unthrottled: unthrottled.step.wrote_flag and bool(unthrottled.after.waiting),
)


@flag_means_backlog.over("step")
def tells_what_is_left(facts: Facts) -> Verdict:
    """Compare the flag with what the step that wrote it left waiting."""
    step, after = facts.step, facts.after
    offered = step.offers_admission
    if not offered and not step.wrote_flag:
        return None
    left = [id for id in after.waiting if after.requests[id].eligible_at <= step.index] if offered else []
    if bool(left) == bool(after.saturated):
        return None
    if left:
        return (
            f"the flag is False and the admissible work left is {', '.join(called(after.requests[id]) for id in left)}"
        )
    why = "" if step.open else "; admission is paused"
    loading = f"; {', '.join(after.parked)} loading" if after.parked else ""
    return f"the flag is True and the admissible work left is none{why}{loading}"


LEFT_AS_IT_WAS = Premise(
    "a step that offered no admission left the flag as it was",
    step=lambda facts: not facts.step.wrote_flag and not facts.step.evictions and facts.step.open,
)

flag_lag = Invariant(
    "flag-lag",
    "When saturation begins or ends, the flag follows within interval steps, not counting from before a step that "
    "preempts or is paused.",
    LEFT_AS_IT_WAS,
    cases=("B02", "B03"),
    in_traces=LEFT_AS_IT_WAS,
    about_holds=True,
)


@flag_lag.over("history")
class StepsWithoutFlag(History):
    """Count the steps in a row that could have written the flag and did not."""

    __slots__ = ("unwritten",)

    def __init__(self) -> None:
        self.unwritten = 0

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        step, config = facts.step, facts.config
        # A step that may not execute at all counts for no clock; it only occurs where a test asks for it.
        if step.wrote_flag or step.evictions or not step.open or config.max_num_batched_tokens == 0:
            self.unwritten = 0
            return ()
        self.unwritten += 1
        most = min(interval - 1, config.max_hold_steps) if interval else config.max_hold_steps
        if self.unwritten <= most:
            return ()
        return (f"the flag was not written for {self.unwritten} steps; {most} is the most",)

    def took_part(self) -> None:
        self.unwritten = 0

    def memory(self, now: int, config: Config) -> int:
        return self.unwritten
