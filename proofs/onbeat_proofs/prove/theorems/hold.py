"""Theorems for all sizes about the decision to hold, and about time.

A step depends on the throttle only through `hold`, and `hold` on lists only through "some running request justifies
it"; so these need no list at all. Over time: an invariant of the counters, kept by one step.
"""

from onbeat_proofs.prove.states import Numbers
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_spec.cadence import advance, count_held, next_hold, throttles
from onbeat_spec.policy import Policy

OLD = frozenset({"pr44558", "local-work"})


def _may_hold(numbers: Numbers, policy: Policy, throttle: bool, saturated: bool) -> bool:
    held_steps, most = numbers.int("held_steps", 0), numbers.int("max_hold_steps", 1)
    return bool(policy.may_hold(throttle=throttle, saturated=saturated, held_steps=held_steps, max_hold_steps=most))


def saturation_opens(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Saturated: no hold, whatever else."""
    held = _may_hold(numbers, policy, numbers.bool("throttle"), True)
    return PathVerdict("a saturated step may hold" if held else None, True)


def off_means_off(numbers: Numbers, policy: Policy) -> PathVerdict:
    """No throttle: no hold, whatever else."""
    held = _may_hold(numbers, policy, False, numbers.bool("saturated"))
    return PathVerdict("an unthrottled step may hold" if held else None, True)


def interval_one(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Interval 1: neither clock ever throttles."""
    phase = numbers.int("phase", 0)
    left = next_hold(0, 1, numbers.int("tokens", 0), bool(numbers.bool("prefill")), False)
    if throttles(phase, 1) or left != 0 or advance(0, 1) != 0:
        return PathVerdict("a clock with interval 1 throttles", True)
    return PathVerdict(None, True)


def no_decode_no_hold(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Whoever justifies a hold is a decode, and can run."""
    work, can_run = numbers.int("work", 0), numbers.bool("can_run")
    justified = bool(policy.justifies_hold(work=work, can_run=can_run))
    decode = work <= 1
    if justified and not (decode and can_run):
        return PathVerdict("a request that is no decode, or cannot run, justifies a hold", True)
    return PathVerdict(None, justified)


def decode_passes(numbers: Numbers, policy: Policy) -> PathVerdict:
    """No running request with at most one token of local work is held."""
    work = numbers.int("work", 0, 1)
    return PathVerdict("a decode is held" if policy.holds_running(work) else None, True)


def resume_passes(numbers: Numbers, policy: Policy) -> PathVerdict:
    """No waiting request with loaded KV is held, whatever is left of it."""
    work, computed, external = numbers.int("work", 1), numbers.int("computed", 0), numbers.int("external", 1)
    numbers.assume(computed <= external)
    held = policy.holds_waiting(work=work, computed=computed, external=external)
    return PathVerdict("a remote resume is held" if held else None, True)


def one_token_passes(numbers: Numbers, policy: Policy) -> PathVerdict:
    """No waiting request with at most one token of local work is held, whatever made it so."""
    computed, external = numbers.int("computed", 0), numbers.int("external", 0)
    held = policy.holds_waiting(work=numbers.int("work", 0, 1), computed=computed, external=external)
    return PathVerdict("one token of local work is held" if held else None, True)


def beat_opens(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Phase 0 never throttles, for any interval."""
    return PathVerdict("a beat throttles" if throttles(0, numbers.int("interval", 1)) else None, True)


def phase_is_step_modulo(numbers: Numbers, policy: Policy) -> PathVerdict:
    """If phase = step - a multiple of interval, and 0 <= phase < interval, then so after one step."""
    interval, multiple = numbers.int("interval", 1), numbers.int("multiple", 0)
    phase = numbers.int("phase", 0)
    numbers.assume(phase < interval)
    step = multiple + phase
    following = advance(phase, interval)
    wrapped = following == 0
    if wrapped and phase + 1 < interval:
        return PathVerdict("the phase went back to 0 before its time", True)
    multiple_then = multiple + interval if wrapped else multiple
    if not (following >= 0 and following < interval and multiple_then + following == step + 1):
        return PathVerdict("phase and step do not agree modulo interval", True)
    return PathVerdict(None, True)


def held_at_most_by_phase(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Before a step of phase > 0, held_steps < phase; so it never passes interval - 1, nor max_hold_steps."""
    interval, phase = numbers.int("interval", 1), numbers.int("phase", 0)
    held, most = numbers.int("held_steps", 0), numbers.int("max_hold_steps", 1)
    numbers.assume(phase < interval)
    numbers.assume(held < phase if phase > 0 else held < interval)
    numbers.assume(held <= most)
    throttle, saturated = throttles(phase, interval), numbers.bool("saturated")
    holds = bool(policy.may_hold(throttle=throttle, saturated=saturated, held_steps=held, max_hold_steps=most))
    held_then, phase_then = count_held(held, holds), advance(phase, interval)
    if held_then > interval - 1 or held_then > most or (phase_then > 0 and held_then >= phase_then):
        return PathVerdict("a hold outlasts the interval or the hard bound", True)
    return PathVerdict(None, holds)


def held_at_most_by_local_clock(numbers: Numbers, policy: Policy) -> PathVerdict:
    """held_steps + left <= interval - 1 is kept by every step; a hold that leaves it empty stands unless lifted."""
    interval, left, held = numbers.int("interval", 1), numbers.int("left", 0), numbers.int("held_steps", 0)
    most, tokens = numbers.int("max_hold_steps", 1), numbers.int("tokens", 0)
    numbers.assume(held + left <= interval - 1)
    numbers.assume(held <= most)
    throttle, saturated = interval > 1 and left > 0, numbers.bool("saturated")
    holds = bool(policy.may_hold(throttle=throttle, saturated=saturated, held_steps=held, max_hold_steps=most))
    if holds and tokens == 0 and policy.lifts(0):
        holds, tokens = False, numbers.int("tokens.lifted", 0)
    prefill = bool(numbers.bool("prefill"))
    held_then = count_held(held, holds)
    left_then = next_hold(left, interval, tokens, prefill, holds)
    if held_then > most or held_then + left_then > interval - 1:
        return PathVerdict("a hold outlasts the interval or the hard bound", True)
    return PathVerdict(None, holds)


def throttle_holds(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Between beats an unsaturated rank may hold in every step; a decode that can run is a reason; prefills are held.

    In lock step: before a step of phase > 0, held_steps < phase (`held-at-most/phase`), and `Config` has
    interval - 1 <= max_hold_steps.
    """
    interval, phase = numbers.int("interval", 2), numbers.int("phase", 1)
    held, most = numbers.int("held_steps", 0), numbers.int("max_hold_steps", 1)
    numbers.assume(phase < interval)
    numbers.assume(held < phase)
    numbers.assume(interval - 1 <= most)
    work = numbers.int("work", 2)
    wrong = None
    if not policy.may_hold(throttle=throttles(phase, interval), saturated=False, held_steps=held, max_hold_steps=most):
        wrong = "a step between beats may not hold"
    elif not policy.justifies_hold(work=numbers.int("decode", 0, 1), can_run=True):
        wrong = "a decode that can run is no reason to hold"
    elif not policy.holds_running(work):
        wrong = "a chunk is not held"
    elif not policy.holds_waiting(work=work, computed=0, external=0):
        wrong = "a fresh prefill of more than one token is not held"
    elif policy.lifts(numbers.int("scheduled", 1)):
        wrong = "a hold is lifted though somebody got tokens"
    return PathVerdict(wrong, True)


def flag_lag(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Before a step of phase > 0, fewer steps than phase since the flag was written, if all are open and evict none."""
    interval, phase, since = numbers.int("interval", 1), numbers.int("phase", 0), numbers.int("since", 0)
    numbers.assume(phase < interval)
    numbers.assume(since < phase if phase > 0 else since < interval)
    holds = bool(
        policy.may_hold(
            throttle=throttles(phase, interval),
            saturated=numbers.bool("saturated"),
            held_steps=numbers.int("held_steps", 0),
            max_hold_steps=numbers.int("most", 1),
        )
    )
    since_then = 0 if policy.writes_flag(hold=holds, preempted=False, open=True) else since + 1
    phase_then = advance(phase, interval)
    if since_then > interval - 1 or (phase_then > 0 and since_then >= phase_then):
        return PathVerdict("the flag is not written within interval steps", True)
    return PathVerdict(None, holds)


def flag_only_when_open(numbers: Numbers, policy: Policy) -> PathVerdict:
    """The flag is written only by a step that neither held nor preempted and was open."""
    hold, preempted, open = bool(numbers.bool("hold")), bool(numbers.bool("preempted")), bool(numbers.bool("open"))
    writes = policy.writes_flag(hold=hold, preempted=preempted, open=open)
    wrong = writes and (hold or preempted or not open)
    return PathVerdict(
        "the flag is written by a step that held, preempted or was paused" if wrong else None, bool(writes)
    )


def flag_is_backlog(numbers: Numbers, policy: Policy) -> PathVerdict:
    """The flag's value is whether admissible work is left (which is some of what waits)."""
    backlog, waiting = bool(numbers.bool("backlog")), bool(numbers.bool("waiting"))
    numbers.assume(waiting or not backlog)
    wrong = bool(policy.saturated(backlog=backlog, waiting=waiting)) != backlog
    return PathVerdict("the flag is not what the step left" if wrong else None, True)


THEOREMS = (
    Theorem("saturation-opens/decision", "On a saturated rank no step may hold.", saturation_opens),
    Theorem("off-means-off/decision", "Without the throttle no step may hold.", off_means_off),
    Theorem("off-means-off/interval-1", "With interval 1 neither clock ever throttles.", interval_one),
    Theorem(
        "no-decode-no-hold/decision",
        "Only a decode that can run justifies a hold.",
        no_decode_no_hold,
        refuted_under=OLD,
    ),
    Theorem(
        "throttle-holds/decision",
        "Between beats an unsaturated rank holds chunks and fresh prefills.",
        throttle_holds,
        restrictions=("ranks that step in lock step, not the local clock",),
    ),
    Theorem("decode-never-held/decision", "No running decode is held.", decode_passes),
    Theorem("resume-bypasses/decision", "No waiting request with loaded KV is held.", resume_passes, refuted_under=OLD),
    Theorem(
        "one-token-passes/decision",
        "No waiting request with one token of local work is held.",
        one_token_passes,
        refuted_under=frozenset({"pr44558"}),
    ),
    Theorem("beat-equals-baseline/decision", "Phase 0 never throttles.", beat_opens),
    Theorem(
        "held-at-most/phase",
        "Of the steps since a beat, phase less one have held at most; never more than max_hold_steps.",
        held_at_most_by_phase,
    ),
    Theorem(
        "held-at-most/local-clock",
        "held_steps + steps left of the hold <= interval - 1.",
        held_at_most_by_local_clock,
        refuted_under=OLD,
    ),
    Theorem("held-at-most/modulo", "phase = step modulo interval.", phase_is_step_modulo),
    Theorem(
        "flag-lag/phase",
        "The flag was written on the latest beat or since, if that step was open and evicted nobody.",
        flag_lag,
    ),
    Theorem(
        "flag-only-when-open/decision",
        "Only an open step without hold or preemption writes the flag.",
        flag_only_when_open,
        refuted_under=frozenset({"local-work"}),
    ),
    Theorem("flag-means-backlog/decision", "The flag's value is the backlog.", flag_is_backlog, refuted_under=OLD),
)
