"""Predicates over two runs from one state: the step as it was, and the step without the throttle."""

from onbeat_spec.catalogue import Verdict, predicate
from onbeat_spec.invariants.words import called, decodes
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts


def same(one: Facts, other: Facts) -> Verdict:
    """Compare two steps from one state by what they gave, took and admitted."""
    for what in ("scheduled", "drafts", "evictions", "admitted", "loading"):
        left, right = getattr(one.step, what), getattr(other.step, what)
        if left != right:
            return f"{what}: {left}, and without the throttle {right}"
    return None


@predicate("decode-never-held", "runs")
def decode_never_held(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Compare what each decode got, draft tokens aside: they take only what is left over."""
    for request in decodes(throttled.before, throttled.step.index):
        got, baseline = (
            facts.step.scheduled.get(request.id, 0) - facts.step.drafts.get(request.id, 0)
            for facts in (throttled, unthrottled)
        )
        if got < baseline:
            return f"decode {request.id} got {got} tokens, and {baseline} without the throttle"
    return None


@predicate("resume-bypasses", "runs")
def resume_bypasses(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A loaded request that runs unthrottled runs throttled."""
    for id in throttled.before.waiting:
        ready = throttled.before.requests[id].external > 0
        if ready and id in unthrottled.step.scheduled and id not in throttled.step.scheduled:
            work = local_work(throttled.before.requests[id])
            left = "one token" if is_decode(work) else "more than one token"
            got = f"remote resume {id} with {left} of local work got nothing; without the throttle it got tokens"
            return got + _behind(throttled, id)
    return None


def hit_by_held(throttled: Facts, unthrottled: Facts, id: str) -> bool:
    """Whether a request may have found in the prefix cache what somebody put there in the very step that held it.

    vLLM finds blocks from the moment they are given out. Then the throttled step could not have found them, and the
    request's local work there is not what it is without the throttle.
    """
    if not throttled.config.enable_prefix_caching:
        return False
    found = unthrottled.after.requests[id].num_computed - unthrottled.step.scheduled.get(id, 0)
    others = (other for other in throttled.step.held if other != id and other in unthrottled.step.scheduled)
    return any(True for _ in others) and found > throttled.before.requests[id].num_computed


def _behind(facts: Facts, id: str) -> str:
    """Say who was held in front of a waiting request, for a policy whose scan ends there."""
    before = facts.before
    for other in before.waiting[: before.waiting.index(id)]:
        if other in facts.step.held:
            return f"; it stood behind {called(before.requests[other])}, which was held"
    return ""


@predicate("one-token-passes", "runs")
def one_token_passes(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A waiting request with one token of local work that runs unthrottled runs throttled."""
    for id in throttled.before.waiting:
        if id in unthrottled.step.scheduled and id not in throttled.step.scheduled:
            after = unthrottled.after.requests[id]
            at_hand = after.num_computed - unthrottled.step.scheduled[id]
            if is_decode(after.num_tokens - at_hand) and not hit_by_held(throttled, unthrottled, id):
                who = called(throttled.before.requests[id])
                got = f"{who} has one token of local work and got none; without the throttle it got it"
                return got + _behind(throttled, id)
    return None


@predicate("saturation-opens", "runs")
def saturation_opens(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A saturated rank's two steps are the same."""
    return same(throttled, unthrottled) if throttled.before.saturated else None


@predicate("no-decode-no-hold", "runs")
def no_decode_no_hold(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Without a decode that can run the two steps are the same."""
    for _ in decodes(throttled.before, throttled.step.index):
        return None
    return same(throttled, unthrottled)


@predicate("off-means-off", "runs")
def off_means_off(off: Facts, without: Facts) -> Verdict:
    """Compare an unthrottled step with that of a policy that cannot hold."""
    return same(off, without)


@predicate("beat-equals-baseline", "runs")
def beat_equals_baseline(beat: Facts, unthrottled: Facts) -> Verdict:
    """Compare a step whose flag the clock chose, on a beat, with an unthrottled one."""
    return same(beat, unthrottled)


@predicate("no-empty-step", "runs")
def no_empty_step(throttled: Facts, unthrottled: Facts) -> Verdict:
    """If the unthrottled step has tokens, so has the throttled one."""
    if not unthrottled.step.scheduled or throttled.step.scheduled:
        return None
    state, evictions = throttled.before, throttled.step.evictions
    why = f"{evictions[0].victim} preempted itself" if evictions else "no running decode can run"
    if not evictions and any(True for _ in decodes(state, throttled.step.index)):
        why = "the decodes got nothing"
    return f"nothing scheduled ({why}); without the throttle {unthrottled.step.scheduled}"


@predicate("throttle-never-evicts", "runs")
def throttle_never_evicts(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Look the throttled step's victims up in the unthrottled step."""
    for victim, _, _ in throttled.step.evictions:
        if victim in unthrottled.step.scheduled:
            return f"{victim} was preempted, and got {unthrottled.step.scheduled[victim]} tokens without the throttle"
    return None
