"""Theorems about one cause each, for all values of one shape.

The sweeps say *that* an invariant holds or not; these tell apart why it fails under the older policies, and cover what
takes more than one step.
"""

from onbeat_proofs.foreign.policies import answering
from onbeat_proofs.prove.states import Numbers, Shape, build, take_step
from onbeat_proofs.prove.sweep import run_trio
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_spec.invariants.flag import tells_what_is_left
from onbeat_spec.invariants.holds import as_empty_as_without, resumes_run, same, short_requests_run
from onbeat_spec.invariants.lifecycle import IDLE_STEPS
from onbeat_spec.policy import Policy

OLD = frozenset({"pr44558", "local-work"})
ONE_FRESH = Shape(1, ("fresh",))
TWO_RUNNING = Shape(2, late=False)
HELD_HEAD = Shape(1, ("fresh", "resume"), scheduling="priority", late=False)
FULL_HIT = Shape(1, ("fresh",), late=False, shared=True)
ONE_OF_EACH = Shape(1, ("fresh|resume",), late=False)
ANY_TWO = (
    Shape(2, late=False),
    Shape(1, ("fresh|resume",), late=False),
    Shape(0, ("fresh|resume", "fresh"), late=False),
)


def nothing_can_run(numbers: Numbers, policy: Policy) -> PathVerdict:
    """The only decode cannot run in this step, and somebody else could."""
    throttled, unthrottled, _ = run_trio(numbers, ONE_FRESH, policy)
    numbers.assume(throttled.before.requests["r0"].eligible_at > throttled.step.index)
    return PathVerdict(as_empty_as_without(throttled, unthrottled), bool(unthrottled.step.scheduled))


def decode_evicts_itself(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Every decode can run, and ends up evicting itself, while a chunk has room."""
    throttled, unthrottled, _ = run_trio(numbers, TWO_RUNNING, policy)
    itself = any(victim == cause for victim, cause, _ in throttled.step.evictions)
    return PathVerdict(as_empty_as_without(throttled, unthrottled), itself and throttled.step.hold)


def behind_held_head(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A ready resume stands behind a held fresh prefill of better priority."""
    throttled, unthrottled, _ = run_trio(numbers, HELD_HEAD, policy)
    return PathVerdict(resumes_run(throttled, unthrottled), "w0" in throttled.step.held)


def flag_while_paused(numbers: Numbers, policy: Policy) -> PathVerdict:
    """New requests are paused, and some wait."""
    scheduler = build(numbers, ONE_FRESH, policy)
    scheduler.pause("new")
    return PathVerdict(tells_what_is_left(take_step(scheduler, False)), True)


def full_hit(numbers: Numbers, policy: Policy) -> PathVerdict:
    """All of a waiting prompt but its last token is in the prefix cache."""
    throttled, unthrottled, _ = run_trio(numbers, FULL_HIT, policy)
    numbers.assume(throttled.before.requests["w0"].num_tokens > 1)
    return PathVerdict(
        short_requests_run(throttled, unthrottled), throttled.step.hold and "w0" in throttled.step.scheduled
    )


def one_door(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Whatever `may_hold` answers, it is all that a step depends on the throttle through."""
    answer = bool(numbers.bool("may_hold"))
    told = answering(policy, answer)
    steps = [take_step(build(numbers, ONE_OF_EACH, told), throttle) for throttle in (True, False)]
    for field in ("hold", "lifted", "held", "saturated"):
        one, other = (getattr(facts.step, field) for facts in steps)
        if one != other:
            return PathVerdict(
                f"with one answer of may_hold, {field} is {one} with the throttle and {other} without", True
            )
    return PathVerdict(same(*steps), answer)


def idle_steps(numbers: Numbers, policy: Policy) -> PathVerdict:
    """With two requests that can run, at most so many steps in a row do nothing."""
    scheduler = build(numbers, numbers.pick("shape", ANY_TWO), policy)
    for count in range(IDLE_STEPS + 1):
        facts = take_step(scheduler, numbers.pick(f"throttle {count}", (True, False)))
        if facts.step.scheduled or facts.step.loading:
            return PathVerdict(None, count > 0)
        scheduler.update(facts.step, {})
    return PathVerdict(f"{IDLE_STEPS + 1} steps in a row do nothing", True)


THEOREMS = (
    Theorem(
        "saturation-opens/one-door",
        "A step depends on the throttle only through what may_hold answers.",
        one_door,
        f"for all values, {ONE_OF_EACH}",
    ),
    Theorem(
        "no-empty-step/nothing-can-run",
        "Not even when the only decode cannot run.",
        nothing_can_run,
        f"for all values, {ONE_FRESH}",
        OLD,
        ONE_FRESH,
    ),
    Theorem(
        "no-empty-step/decode-evicts-itself",
        "Not even when the only decode evicts itself.",
        decode_evicts_itself,
        f"for all values, {TWO_RUNNING}",
        OLD,
        TWO_RUNNING,
    ),
    Theorem(
        "resume-bypasses/held-head",
        "Also behind a held head.",
        behind_held_head,
        f"for all values, {HELD_HEAD}",
        OLD,
        HELD_HEAD,
    ),
    Theorem(
        "flag-means-backlog/paused",
        "Also while new requests are paused.",
        flag_while_paused,
        f"for all values, {ONE_FRESH}",
        frozenset({"local-work"}),
    ),
    Theorem(
        "one-token-passes/full-hit",
        "Also when the prefix cache holds the rest.",
        full_hit,
        f"for all values, {FULL_HIT}",
        frozenset({"pr44558"}),
        FULL_HIT,
    ),
    Theorem(
        "progress/idle-steps",
        f"At most {IDLE_STEPS} steps in a row do nothing.",
        idle_steps,
        "for all values, two requests",
        about="steps",
    ),
)
