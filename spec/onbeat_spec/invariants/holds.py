"""Who may be held, when, and what a hold leaves to do."""

from onbeat_spec.catalogue import Invariant, Premise, TwoRuns, Verdict
from onbeat_spec.invariants.words import called, decodes
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Facts, Place


def _somebody_held(facts: Facts) -> bool:
    return bool(facts.step.held)


def _resumed_beside_a_hold(throttled: Facts, unthrottled: Facts) -> bool:
    step = throttled.step
    return bool(step.held) and any(id in step.scheduled for id in step.resumed)


SOMEBODY_HELD = Premise("somebody was held", step=_somebody_held)


def same(one: Facts, other: Facts) -> Verdict:
    """Compare two steps from one state by what they gave, took and admitted."""
    for field in ("scheduled", "drafts", "evictions", "admitted", "loading"):
        left, right = getattr(one.step, field), getattr(other.step, field)
        if left != right:
            return f"{field}: {left}, and without the throttle {right}"
    return None


def _behind(facts: Facts, id: str) -> str:
    """Say who was held in front of a waiting request, for a policy whose scan ends there."""
    before = facts.before
    for other in before.waiting[: before.waiting.index(id)]:
        if other in facts.step.held:
            return f"; it stood behind {called(before.requests[other])}, which was held"
    return ""


# --- Decodes ---------------------------------------------------------------------------------------------------------

decode_never_held = Invariant(
    "decode-never-held",
    "A decode gets in a throttled step at least what it gets unthrottled from the same state (draft tokens aside).",
    Premise(
        "a throttled step differed from the unthrottled one while a decode could run",
        runs=lambda two: two.matters and two.decode,
    ),
    cases=("B12", "B19", "B24"),
    in_traces=SOMEBODY_HELD,
    witness=lambda throttled, unthrottled: bool(throttled.step.held and throttled.step.scheduled),
    about_holds=True,
)


@decode_never_held.over("runs")
def decodes_get_as_much(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Compare what each decode got, draft tokens aside: they take only what is left over."""
    for request in decodes(throttled.before, throttled.step.index):
        tokens, baseline = (
            facts.step.scheduled.get(request.id, 0) - facts.step.drafts.get(request.id, 0)
            for facts in (throttled, unthrottled)
        )
        if tokens < baseline:
            return f"decode {request.id} got {tokens} tokens, and {baseline} without the throttle"
    return None


@decode_never_held.over("step")
def no_decode_among_held(facts: Facts) -> Verdict:
    """No running decode is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if request.place is Place.RUNNING and is_decode(local_work(request)):
            return f"decode {id} was held"
    return None


# --- Remote resumes --------------------------------------------------------------------------------------------------


def _resumes_let_in(two: TwoRuns) -> int:
    """Count the loaded requests that the unthrottled step admits, where the throttled one held."""
    if not two.throttled.step.hold:
        return 0
    before, admitted = two.throttled.before, two.unthrottled.step.scheduled
    return sum(id in admitted and before.requests[id].external > 0 for id in before.waiting)


resume_bypasses = Invariant(
    "resume-bypasses",
    "A ready remote resume is never held, wherever it stands in the queue.",
    Premise("a step held while a ready remote resume could be admitted", runs=_resumes_let_in),
    cases=("B01",),
    in_traces=SOMEBODY_HELD,
    witness=_resumed_beside_a_hold,
    about_holds=True,
)


@resume_bypasses.over("runs")
def resumes_run(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A loaded request that runs unthrottled runs throttled."""
    for id in throttled.before.waiting:
        ready = throttled.before.requests[id].external > 0
        if ready and id in unthrottled.step.scheduled and id not in throttled.step.scheduled:
            work = local_work(throttled.before.requests[id])
            left = "one token" if is_decode(work) else "more than one token"
            message = f"remote resume {id} with {left} of local work got nothing; without the throttle it got tokens"
            return message + _behind(throttled, id)
    return None


@resume_bypasses.over("step")
def no_resume_among_held(facts: Facts) -> Verdict:
    """No loaded request is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if request.place is Place.WAITING and request.external > 0:
            return f"{id}, a remote resume with {request.external} loaded tokens, was held"
    return None


# --- Saturation, and the throttle off --------------------------------------------------------------------------------

saturation_opens = Invariant(
    "saturation-opens",
    "On a saturated rank the throttled step equals the unthrottled one.",
    Premise(
        "a saturated rank was throttled with a decode running and a prefill to let in",
        runs=lambda two: two.unthrottled.step.prefill and two.throttled.before.saturated and two.decode,
    ),
    cases=("B02", "B23"),
    witness=lambda throttled, unthrottled: bool(throttled.before.saturated) and bool(throttled.step.scheduled),
    about_holds=True,
)


@saturation_opens.over("runs")
def saturated_steps_are_the_same(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A saturated rank's two steps are the same."""
    return same(throttled, unthrottled) if throttled.before.saturated else None


off_means_off = Invariant(
    "off-means-off",
    "With interval 1, or throttle false, a step equals that of a scheduler without the feature.",
    Premise("an unthrottled step in a state where the throttle matters", runs=lambda two: two.matters),
    cases=("B112",),
    in_traces=SOMEBODY_HELD,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.scheduled) and throttled.step.hold,
    about_holds=True,
    pair="feature",
)


@off_means_off.over("runs")
def off_is_without_the_feature(off: Facts, without: Facts) -> Verdict:
    """Compare an unthrottled step with that of a policy that cannot hold."""
    return same(off, without)


@off_means_off.over("step")
def hold_needs_the_flag(facts: Facts) -> Verdict:
    """Whoever was held was held because of the throttle."""
    if facts.step.held and not facts.step.throttle:
        return f"{', '.join(facts.step.held)} held in a step without the throttle"
    return None


# --- A hold has a reason, and leaves work ----------------------------------------------------------------------------

no_decode_no_hold = Invariant(
    "no-decode-no-hold",
    "Without a decode that can run in this step nothing is held.",
    Premise(
        "a throttled step without a decode that can run, with a prefill to let in",
        runs=lambda two: two.unthrottled.step.prefill and not two.decode,
    ),
    cases=("B07",),
    in_traces=Premise(
        "somebody was held in a step with whole states around it",
        step=lambda facts: bool(facts.step.held) and facts.before.held >= 0,
    ),
    witness=lambda throttled, unthrottled: (
        bool(throttled.step.scheduled) and not throttled.step.hold and not throttled.before.saturated
    ),
    about_holds=True,
)


@no_decode_no_hold.over("runs")
def same_without_a_decode(throttled: Facts, unthrottled: Facts) -> Verdict:
    """Without a decode that can run the two steps are the same."""
    for _ in decodes(throttled.before, throttled.step.index):
        return None
    return same(throttled, unthrottled)


@no_decode_no_hold.over("step")
def hold_has_a_reason(facts: Facts) -> Verdict:
    """Whoever was held was held for a decode."""
    if facts.step.held and facts.before.held >= 0:
        for _ in decodes(facts.before, facts.step.index):
            return None
        return f"{', '.join(facts.step.held)} held though no decode can run"
    return None


no_empty_step = Invariant(
    "no-empty-step",
    "A step schedules at least one token whenever the unthrottled step from the same state would.",
    Premise(
        "a hold left, or would have left, nothing but prefills to schedule",
        runs=lambda two: two.throttled.step.lifted or (two.matters and not two.throttled.step.scheduled),
        by_text=lambda seen: seen.all_held,
    ),
    cases=("B07",),
    in_traces=SOMEBODY_HELD,
    witness=lambda throttled, unthrottled: throttled.step.hold and bool(unthrottled.step.scheduled),
    about_holds=True,
)


@no_empty_step.over("runs")
def as_empty_as_without(throttled: Facts, unthrottled: Facts) -> Verdict:
    """If the unthrottled step has tokens, so has the throttled one."""
    if not unthrottled.step.scheduled or throttled.step.scheduled:
        return None
    state, evictions = throttled.before, throttled.step.evictions
    why = f"{evictions[0].victim} preempted itself" if evictions else "no running decode can run"
    if not evictions and any(True for _ in decodes(state, throttled.step.index)):
        why = "the decodes got nothing"
    return f"nothing scheduled ({why}); without the throttle {unthrottled.step.scheduled}"


@no_empty_step.over("step")
def hold_leaves_work(facts: Facts) -> Verdict:
    """A step that held somebody scheduled somebody else."""
    if facts.step.held and not facts.step.scheduled and not facts.step.evictions:
        return f"nothing scheduled while {', '.join(facts.step.held)} was held"
    return None


# --- One token of local work -----------------------------------------------------------------------------------------


def _short_let_in(two: TwoRuns) -> int:
    """Count the waiting requests with one token of local work that the unthrottled step admits beside a hold."""
    if not two.throttled.step.hold:
        return 0
    admitted, after = two.unthrottled.step.scheduled, two.unthrottled.after.requests
    let_in = [id for id in two.throttled.before.waiting if id in admitted]
    return sum(is_decode(after[id].num_tokens - after[id].num_computed + admitted[id]) for id in let_in)


one_token_passes = Invariant(
    "one-token-passes",
    "A request with at most one token of local work is never held.",
    Premise("a step held while a request with one token of local work waited", runs=_short_let_in),
    cases=("B01", "B16"),
    in_traces=SOMEBODY_HELD,
    witness=_resumed_beside_a_hold,
    about_holds=True,
)


def hit_by_held(throttled: Facts, unthrottled: Facts, id: str) -> bool:
    """Whether a request may have found in the prefix cache what somebody put there in the very step that held it.

    vLLM finds blocks from the moment they are given out. Then the throttled step could not have found them, and the
    request's local work there is not what it is without the throttle.
    """
    if not throttled.config.enable_prefix_caching:
        return False
    computed = unthrottled.after.requests[id].num_computed - unthrottled.step.scheduled.get(id, 0)
    others = (other for other in throttled.step.held if other != id and other in unthrottled.step.scheduled)
    return any(True for _ in others) and computed > throttled.before.requests[id].num_computed


@one_token_passes.over("runs")
def short_requests_run(throttled: Facts, unthrottled: Facts) -> Verdict:
    """A waiting request with one token of local work that runs unthrottled runs throttled."""
    for id in throttled.before.waiting:
        if id in unthrottled.step.scheduled and id not in throttled.step.scheduled:
            after = unthrottled.after.requests[id]
            at_hand = after.num_computed - unthrottled.step.scheduled[id]
            if is_decode(after.num_tokens - at_hand) and not hit_by_held(throttled, unthrottled, id):
                who = called(throttled.before.requests[id])
                message = f"{who} has one token of local work and got none; without the throttle it got it"
                return message + _behind(throttled, id)
    return None


@one_token_passes.over("step")
def nothing_short_among_held(facts: Facts) -> Verdict:
    """Nobody with at most one token of local work is passed over by a hold."""
    for id in facts.step.held:
        request = facts.before.requests[id]
        if is_decode(local_work(request)):
            return f"{called(request)} was held with at most one token of local work"
    return None
