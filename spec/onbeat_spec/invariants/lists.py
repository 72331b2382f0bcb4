"""The scheduler's lists: every live request stands in one, and every running request is served once."""

from onbeat_spec.catalogue import Invariant, Premise, Verdict
from onbeat_spec.config import Config
from onbeat_spec.invariants.capacity import WHOLE_STATE
from onbeat_spec.invariants.words import decodes
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, Place, State, View


def _several_lists(facts: Facts) -> bool:
    after = facts.after
    return bool(after.waiting) + bool(after.parked) + bool(after.running) > 1


one_place = Invariant(
    "one-place",
    "Each live request is in exactly one of waiting, parked and running.",
    Premise("requests stood in two lists or more", step=_several_lists),
    cases=("B56",),
    in_traces=WHOLE_STATE,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.evictions or unthrottled.step.admitted),
)


@one_place.over("state")
def stands_once(config: Config, state: State) -> Verdict:
    """Look every live request up in the three lists."""
    places: dict[str, Place] = {}
    for place, ids in (
        (Place.RUNNING, state.running),
        (Place.WAITING, state.waiting),
        (Place.PARKED, state.parked),
    ):
        for id in ids:
            if id in places:
                return f"{id} stands in {places[id].value} and in {place.value}"
            places[id] = place
    for id, request in state.requests.items():
        if places.pop(id, Place.FINISHED) is not request.place:
            return f"{id} is {request.place.value} and does not stand there"
    return f"{', '.join(places)} stand in a list and are not live" if places else None


SEVERAL_RAN = Premise("two requests or more ran", step=lambda facts: facts.before.num_running > 1)

visit_once = Invariant(
    "visit-once",
    "Each running request that is not preempted in the step is considered exactly once.",
    SEVERAL_RAN,
    cases=("B38", "B56"),
    in_traces=SEVERAL_RAN,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.evictions and unthrottled.step.scheduled),
)


@visit_once.over("step")
def everybody_is_served_once(facts: Facts) -> Verdict:
    """A decode without tokens needs a reason; tokens given must be the tokens booked."""
    before, step = facts.before, facts.step
    evicted = {eviction.victim for eviction in step.evictions}
    for id in before.running:
        if id not in facts.after.requests or id in evicted:
            continue
        request = before.requests[id]
        granted = step.scheduled.get(id, 0)
        booked = facts.after.requests[id].num_computed - request.num_computed
        if booked != granted:
            return f"{id} was given {granted} tokens and booked with {booked}"
        if granted - step.drafts.get(id, 0) > local_work(request) or step.drafts.get(id, 0) > request.num_drafts:
            return f"{id} was given {granted} tokens for {local_work(request)} of work and {request.num_drafts} drafts"
    if step.open:
        for request in decodes(before, step.index):
            if request.id not in step.scheduled and request.id not in evicted and request.id not in step.sat_out:
                if _waits_for_blocks(facts, request):
                    continue
                left = _tokens_left(facts)
                return f"decode {request.id} got no token though {left} were left" if left > 0 else None
    return None


def _waits_for_blocks(facts: Facts, request: View) -> bool:
    """Whether there is no block for a decode until a step in flight is back, and nobody was preempted for one.

    Blocks that a step in flight may write into need not be given back before it is (vLLM with a KV connector).
    """
    full = request.num_computed >= request.num_blocks * facts.config.block_size
    return full and facts.after.free == 0 and facts.before.in_flight > 0 and not facts.step.evictions


def _tokens_left(facts: Facts) -> int:
    """Count the tokens that a step could have given to one more running decode."""
    step = facts.step
    left = facts.config.max_num_batched_tokens - sum(step.scheduled.values())
    if facts.before.held >= 0:
        # What admissions took, and chunks, a decode should have had before them (B12, B19).
        chunks = [id for id in facts.before.running if not is_decode(local_work(facts.before.requests[id]))]
        left += sum(step.scheduled.get(id, 0) for id in (*step.admitted, *chunks))
    return left
