"""What a hold may cost: steps, order, and nobody's blocks."""

from collections.abc import Sequence

from onbeat_spec.catalogue import History, Invariant, Premise, Verdict
from onbeat_spec.config import Config
from onbeat_spec.invariants.holds import SOMEBODY_HELD, same
from onbeat_spec.invariants.words import better
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, View

held_at_most = Invariant(
    "held-at-most",
    "No request is held more than interval - 1 steps in a row, and never more than max_hold_steps.",
    SOMEBODY_HELD,
    cases=("B04", "B05", "B08"),
    in_traces=SOMEBODY_HELD,
    about_holds=True,
)


@held_at_most.over("history")
class HeldInARow(History):
    """Count, for each held request, the steps in a row that held it."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        most = facts.config.max_hold_steps
        if interval:
            most = min(most, interval - 1)
        self.held = {id: self.held.get(id, 0) + 1 for id in facts.step.held}
        return [
            f"{id} was held {count} steps in a row; {most} is the most"
            for id, count in self.held.items()
            if count > most
        ]

    def finished(self, id: str) -> None:
        self.held.pop(id, None)

    def took_part(self) -> None:
        self.held.clear()

    def memory(self, now: int, config: Config) -> dict[str, int]:
        return self.held


beat_equals_baseline = Invariant(
    "beat-equals-baseline",
    "On a beat the step equals the unthrottled one.",
    Premise("the clock was on a beat in a state where the throttle matters", beat=bool),
    cases=("B05",),
    about_holds=True,
    pair="beat",
)


@beat_equals_baseline.over("runs")
def beats_are_unthrottled(beat: Facts, unthrottled: Facts) -> Verdict:
    """Compare a step whose flag the clock chose, on a beat, with an unthrottled one."""
    return same(beat, unthrottled)


LEFT_SOMEBODY = Premise(
    "a step admitted somebody and left others waiting",
    step=lambda facts: bool((facts.step.admitted or facts.step.loading) and facts.after.waiting),
)

order_kept = Invariant(
    "order-kept",
    "No younger fresh prefill overtakes an older one, and skipped requests keep their order.",
    LEFT_SOMEBODY,
    cases=("B48", "B49"),
    in_traces=LEFT_SOMEBODY,
    witness=lambda throttled, unthrottled: len(unthrottled.step.admitted) > 1,
)


@order_kept.over("step")
def nobody_overtakes(facts: Facts) -> Verdict:
    """Compare every admitted fresh prefill with those left waiting; compare the order of those left."""
    before, step = facts.before, facts.step
    waiting, left = set(before.waiting), set(facts.after.waiting)
    for id in step.admitted:
        chosen = before.requests[id]
        now = facts.after.requests[id]
        at_hand = now.num_computed - step.scheduled[id]
        # What it loaded shows only after the step: an offer that the local cache made needless is no load.
        fresh = now.external == 0 and chosen.num_blocks == 0 and not is_decode(chosen.num_tokens - at_hand)
        if not fresh:
            continue
        for other_id in before.waiting:
            other = before.requests[other_id]
            if (
                other_id in left
                and _fresh(other)
                and other.eligible_at <= step.index
                and better(facts.config, other, chosen)
            ):
                return f"fresh prefill {id} was admitted before the older {other_id}"
    stayed = [id for id in before.waiting if id in left]
    if before.held >= 0 and [id for id in facts.after.waiting if id in waiting] != stayed:
        return f"those left waiting stood as {stayed} and stand as {list(facts.after.waiting)}"
    return None


def _fresh(request: View) -> bool:
    """Whether a waiting request is a fresh prefill, whatever a step would find in the local cache."""
    return (
        request.external == 0
        and request.remote_tokens == 0
        and request.num_blocks == 0
        and not is_decode(local_work(request))
    )


throttle_never_evicts = Invariant(
    "throttle-never-evicts",
    "Whoever a throttled step preempts would have got no token in the unthrottled one either.",
    Premise(
        "a step that held preempted somebody",
        runs=lambda two: two.throttled.step.hold and bool(two.throttled.step.evictions),
        by_text=lambda seen: seen.holds and bool(seen.throttled.step.evictions),
    ),
    witness=lambda throttled, unthrottled: bool(throttled.step.held and throttled.step.evictions),
    about_holds=True,
)


@throttle_never_evicts.over("runs")
def victims_would_have_got_nothing(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Look the throttled step's victims up in the unthrottled step."""
    for victim, _, _ in throttled.step.evictions:
        if victim in unthrottled.step.scheduled:
            return f"{victim} was preempted, and got {unthrottled.step.scheduled[victim]} tokens without the throttle"
    return None
