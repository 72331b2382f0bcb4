"""That the throttle does what it is there for."""

from collections.abc import Sequence

from onbeat_spec.cadence import count_held
from onbeat_spec.catalogue import History, Invariant, Premise, Verdict
from onbeat_spec.config import Config
from onbeat_spec.invariants.words import decodes
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, Place


def _decode_served(facts: Facts) -> bool:
    """Whether a decode got a token. A partial state leaves plain decodes out; then it may be, and does not show."""
    return any(request.id in facts.step.scheduled for request in decodes(facts.before, facts.step.index))


HELD_BESIDE_A_DECODE = Premise(
    "a throttled step of an unsaturated rank held somebody, and a decode was seen to get a token",
    step=lambda facts: (
        facts.step.throttle and not facts.before.saturated and bool(facts.step.held) and _decode_served(facts)
    ),
)
throttle_holds = Invariant(
    "throttle-holds",
    "A throttled step of an unsaturated rank with a decode that can run gives no token to a chunk, nor to a fresh "
    "prefill of more than one token, unless it would be empty or max_hold_steps steps in a row have held.",
    HELD_BESIDE_A_DECODE,
    cases=("B05", "B12"),
    in_traces=HELD_BESIDE_A_DECODE,
    witness=lambda throttled, unthrottled: bool(throttled.step.held),
    about_holds=True,
)


@throttle_holds.over("step")
def nobody_slips_through(facts: Facts) -> Verdict:
    """In a step that holds, tokens go to decodes, to what a remote store loaded, and to one token of work."""
    return _let_through(facts) if facts.step.holding else None


def _let_through(facts: Facts) -> Verdict:
    """Name a chunk, or a fresh prefill of more than one token, that got tokens beside a decode.

    Where no decode got any, the hold would have left the step empty; not every scheduler shows that it was lifted.
    """
    if not _decode_served(facts):
        return None
    for id, tokens in facts.step.scheduled.items():
        request = facts.before.requests.get(id)
        if request is None:
            continue
        if request.place is Place.RUNNING:
            if not is_decode(local_work(request)):
                return f"chunk {id} got {tokens} tokens in a throttled step"
        elif request.num_blocks == 0 and facts.after.requests[id].external == 0:
            at_hand = facts.after.requests[id].num_computed - tokens
            if not is_decode(request.num_tokens - at_hand):
                return f"fresh prefill {id} got {tokens} tokens in a throttled step"
    return None


@throttle_holds.over("history")
class HoldsThatAreDue(History):
    """Count the steps in a row that held, and look at those that should have held and did not, or not to the end."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        step, before = facts.step, facts.before
        due = step.throttle and not before.saturated and self.held < facts.config.max_hold_steps
        self.held = count_held(self.held, step.holding)
        if not due or step.holding:
            return ()
        if step.lifted:
            served = [request.id for request in decodes(before, step.index) if request.id in step.scheduled]
            return (f"the hold was lifted, though decode {served[0]} got a token",) if served else ()
        let_through = _let_through(facts)
        return () if let_through is None else (let_through,)

    def memory(self, now: int, config: Config) -> int:
        return self.held
