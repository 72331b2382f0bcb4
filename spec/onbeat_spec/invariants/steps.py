"""Predicates over one step."""

from onbeat_spec.catalogue import Verdict, predicate
from onbeat_spec.invariants.words import better, called, decodes
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, Place, View


@predicate("budget", "step")
def budget(facts: Facts) -> Verdict:
    """Add up the step's tokens."""
    step = facts.step
    total = sum(step.scheduled.values())
    if total > facts.config.max_num_batched_tokens:
        return f"{total} tokens scheduled; max_num_batched_tokens is {facts.config.max_num_batched_tokens}"
    for id, drafts in step.drafts.items():
        if id not in step.scheduled or drafts >= step.scheduled[id]:
            return f"{id} has {drafts} drafts in {step.scheduled.get(id, 0)} scheduled tokens"
    return None


@predicate("decode-never-held", "step")
def no_decode_among_held(facts: Facts) -> Verdict:
    """No running decode is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if request.place is Place.RUNNING and is_decode(local_work(request)):
            return f"decode {id} was held"
    return None


@predicate("resume-bypasses", "step")
def no_resume_among_held(facts: Facts) -> Verdict:
    """No loaded request is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if request.place is Place.WAITING and request.external > 0:
            return f"{id}, a remote resume with {request.external} loaded tokens, was held"
    return None


@predicate("one-token-passes", "step")
def nothing_short_among_held(facts: Facts) -> Verdict:
    """Nobody with at most one token of local work is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if is_decode(local_work(request)):
            return f"{called(request)} was held with at most one token of local work"
    return None


@predicate("no-decode-no-hold", "step")
def hold_has_a_reason(facts: Facts) -> Verdict:
    """Whoever was held was held for a decode."""
    if facts.step.held and facts.before.held >= 0:
        for _ in decodes(facts.before, facts.step.index):
            return None
        return f"{', '.join(facts.step.held)} held though no decode can run"
    return None


@predicate("off-means-off", "step")
def hold_needs_the_flag(facts: Facts) -> Verdict:
    """Whoever was held was held because of the throttle."""
    if facts.step.held and not facts.step.throttle:
        return f"{', '.join(facts.step.held)} held in a step without the throttle"
    return None


@predicate("no-empty-step", "step")
def hold_leaves_work(facts: Facts) -> Verdict:
    """A step that held somebody scheduled somebody else."""
    if facts.step.held and not facts.step.scheduled and not facts.step.evictions:
        return f"nothing scheduled while {', '.join(facts.step.held)} was held"
    return None


@predicate("flag-only-when-open", "step")
def flag_only_when_open(facts: Facts) -> Verdict:
    """Compare the flag on both sides of the step."""
    step = facts.step
    if facts.after.saturated == facts.before.saturated:
        return None
    for closed, why in ((step.hold, "held"), (bool(step.evictions), "preempted"), (not step.open, "was paused")):
        if closed:
            return f"the flag became {bool(facts.after.saturated)} in a step that {why}"
    return None


@predicate("flag-means-backlog", "step")
def flag_means_backlog(facts: Facts) -> Verdict:
    """Compare the flag with what the step that wrote it left waiting."""
    step, after = facts.step, facts.after
    offered = step.open and not step.hold and not step.evictions
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


@predicate("order-kept", "step")
def order_kept(facts: Facts) -> Verdict:
    """Compare every admitted fresh prefill with those left waiting; compare the order of those left."""
    before, step = facts.before, facts.step
    known, left = set(before.waiting), set(facts.after.waiting)
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
    if before.held >= 0 and [id for id in facts.after.waiting if id in known] != stayed:
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


@predicate("visit-once", "step")
def visit_once(facts: Facts) -> Verdict:
    """A decode without tokens needs a reason; tokens given must be the tokens booked."""
    before, step = facts.before, facts.step
    evicted = {eviction.victim for eviction in step.evictions}
    for id in before.running:
        if id not in facts.after.requests or id in evicted:
            continue
        request = before.requests[id]
        given = step.scheduled.get(id, 0)
        booked = facts.after.requests[id].num_computed - request.num_computed
        if booked != given:
            return f"{id} was given {given} tokens and booked with {booked}"
        if given - step.drafts.get(id, 0) > local_work(request) or step.drafts.get(id, 0) > request.num_drafts:
            return f"{id} was given {given} tokens for {local_work(request)} of work and {request.num_drafts} drafts"
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


@predicate("evicted-is-out", "step")
def evicted_is_out(facts: Facts) -> Verdict:
    """Look every victim up in the step's output and in the state after it."""
    step = facts.step
    for victim, _, _ in step.evictions:
        if victim in step.scheduled or victim in step.drafts or victim in step.admitted:
            return f"{victim} was preempted and is in the step's output"
        request = facts.after.requests[victim]
        if request.place is not Place.WAITING:
            return f"{victim} was preempted and is {request.place.value}"
        if request.num_computed != 0 or request.num_placeholders != 0 or request.num_drafts != 0:
            return f"{victim} was preempted and keeps counts of its lost KV"
        if request.num_blocks != 0 or request.reserved != 0:
            return f"{victim} was preempted and keeps {request.num_blocks} blocks, {request.reserved} promised"
    return None


@predicate("victim-can-pay", "step")
def victim_can_pay(facts: Facts) -> Verdict:
    """Whoever was preempted for another gave blocks back."""
    for victim, cause, released in facts.step.evictions:
        if victim != cause and released <= 0:
            return f"{victim} was preempted for {cause} and released nothing"
    return None


@predicate("all-or-nothing", "step")
def all_or_nothing(facts: Facts) -> Verdict:
    """Who got no tokens in the step, and was not preempted, holds the blocks it held."""
    step = facts.step
    served = {*step.loading, *(eviction.victim for eviction in step.evictions)}
    for id in facts.before.running:
        if id in step.scheduled or id in served or id not in facts.after.requests:
            continue
        held, holds = facts.before.requests[id].num_blocks, facts.after.requests[id].num_blocks
        if held != holds:
            return f"{id} got no tokens and went from {held} to {holds} blocks"
    return None


@predicate("full-sequence-fits", "step")
def full_sequence_fits(facts: Facts) -> Verdict:
    """What a step admitted has blocks or a promise for all it knows, and all promises can be kept."""
    step, after, size = facts.step, facts.after, facts.config.block_size
    newcomers = [*step.admitted, *step.loading]
    if newcomers and after.promised > after.free:
        return f"after admitting {', '.join(newcomers)} {after.promised} blocks are promised and {after.free} free"
    for id in newcomers:
        request = after.requests[id]
        if (request.num_blocks + request.reserved) * size < request.num_tokens:
            return (
                f"{id} has {request.num_blocks} blocks and {request.reserved} promised for {request.num_tokens} tokens"
            )
    return None


@predicate("oldest-finishes", "step")
def oldest_finishes(facts: Facts) -> Verdict:
    """Compare every victim with the request it was preempted for."""
    before = facts.before
    for victim, cause, _ in facts.step.evictions:
        if victim != cause and better(facts.config, before.requests[victim], before.requests[cause]):
            return f"{victim} was preempted for the younger {cause}"
        others = [r for id, r in before.requests.items() if id != victim and r.num_blocks > 0]
        if victim == cause and before.held >= 0 and not others:
            return f"{victim}, the only request with blocks, was preempted"
    return None


@predicate("load-once", "step")
def load_takes_the_offer(facts: Facts) -> Verdict:
    """A load uses up the store's offer."""
    for id in facts.step.loading:
        if facts.before.requests[id].remote_tokens <= 0 or facts.after.requests[id].remote_tokens != 0:
            return f"{id} loads though nothing is offered, or may load again"
    return None
