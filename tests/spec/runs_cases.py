"""Cases of two runs from one state."""

from dataclasses import replace
from typing import Any

from onbeat_spec.config import Config
from onbeat_spec.records import Facts, State
from tests.spec.builders import CONFIG, chunk, decode, facts, fresh, landed, state
from tests.spec.cases import AB, FLAGGED, GONE, fails, gave, holds, in_runs

in_runs("decode-never-held", "the decode has as much", AB, gave(a=1), gave(a=1, b=8))
in_runs("decode-never-held", "the decode has more", AB, gave(a=1), gave(b=8))
in_runs(
    "decode-never-held", "the decode has nothing", AB, gave(b=8), gave(a=1), says="decode a got 0 tokens, and 1 without"
)
in_runs(
    "decode-never-held",
    "drafts take what is left over",
    AB,
    {"scheduled": {"a": 2}, "drafts": {"a": 1}},
    {"scheduled": {"a": 4}, "drafts": {"a": 3}},
)
in_runs(
    "decode-never-held",
    "drafts make up for no token",
    AB,
    {"scheduled": {"a": 2}, "drafts": {"a": 2}},
    gave(a=1),
    says="decode a got 0 tokens, and 1 without the throttle",
)
in_runs("decode-never-held", "what a chunk loses is no matter", AB, gave(a=1), gave(a=1, b=8))

READY = state(decode("a"), fresh("c"), landed("d"))
in_runs("resume-bypasses", "it runs in both", READY, gave(a=1, d=4), gave(a=1, c=8, d=4))
in_runs(
    "resume-bypasses",
    "a single token was loaded",
    state(landed("d", external=1, num_computed=1)),
    gave(),
    gave(d=7),
    says="remote resume d with more than one token of local work got nothing; without the throttle it got tokens",
)
in_runs("resume-bypasses", "it runs in neither", READY, gave(a=1), gave(a=1, c=8))
in_runs(
    "resume-bypasses",
    "it is held",
    READY,
    gave(a=1),
    gave(a=1, c=8, d=3),
    says="remote resume d with more than one token of local work got nothing",
)
in_runs(
    "resume-bypasses",
    "it stands behind who is held",
    READY,
    {"scheduled": {"a": 1}, "held": ["c"]},
    gave(a=1, c=8, d=3),
    says="it got tokens; it stood behind waiting c, which was held",
)

ONE = state(decode("a"), fresh("c"))


def short(left: int, given: int) -> State:
    """After a step that gave c, of whose 8 tokens all but `left` were at hand, `given` tokens."""
    return state(decode("a"), chunk("c", num_tokens=8, num_computed=8 - left + given))


in_runs("one-token-passes", "it runs in both", ONE, gave(a=1, c=1), gave(a=1, c=1), after=short(1, 1))
in_runs("one-token-passes", "it runs in neither", ONE, gave(a=1), gave(a=1))
in_runs("one-token-passes", "two tokens may be held", ONE, gave(a=1), gave(a=1, c=2), after=short(2, 2))
in_runs("one-token-passes", "one of two, too", ONE, gave(a=1), gave(a=1, c=1), after=short(2, 1))
in_runs(
    "one-token-passes",
    "one token is held",
    ONE,
    gave(a=1),
    gave(a=1, c=1),
    says="c has one token of local work and got none; without the throttle it got it",
    after=short(1, 1),
)
TWO = state(decode("a"), fresh("b"), fresh("c"))


def behind_b(config: Config) -> tuple[Facts, Facts]:
    """Two steps in which c, of whose 8 tokens 7 are at hand without the throttle, is held, and so is b."""
    after = state(decode("a"), chunk("b", num_tokens=16, num_computed=8), chunk("c", num_tokens=8, num_computed=8))
    return (
        facts(TWO, config=config, throttle=True, scheduled={"a": 1}, held=["b", "c"]),
        facts(TWO, after, config, scheduled={"a": 1, "b": 8, "c": 1}),
    )


fails("nobody caches", "one-token-passes", "runs", *behind_b(CONFIG), says="c has one token of local work")
holds(
    "the 7 may be what b would have computed in this very step",
    "one-token-passes",
    "runs",
    *behind_b(replace(CONFIG, enable_prefix_caching=True)),
)

DIFFERENCES: tuple[tuple[str, Any, Any], ...] = (
    ("scheduled", {"a": 1}, {"a": 1, "b": 8}),
    ("drafts", {"a": 1}, {"a": 2}),
    ("evictions", GONE, []),
    ("admitted", [], ["c"]),
    ("loading", ["c"], []),
)
NO_DECODE = state(chunk("b"), fresh("c"))
for invariant, everywhere in (
    ("saturation-opens", FLAGGED),
    ("no-decode-no-hold", NO_DECODE),
    ("off-means-off", AB),
    ("beat-equals-baseline", AB),
):
    in_runs(invariant, "the same step", everywhere, gave(a=1, b=8), gave(a=1, b=8))
    in_runs(invariant, "who was held is no matter", everywhere, {"held": ["c"], **gave(a=1)}, gave(a=1))
    for what, one, other in DIFFERENCES:
        says = f"{what}: {one}, and without the throttle {other}"
        in_runs(invariant, f"{what} differ", everywhere, {what: one}, {what: other}, says=says)
in_runs("saturation-opens", "not saturated, not the same", AB, gave(a=1), gave(a=1, b=8))
in_runs("no-decode-no-hold", "a decode, and not the same", AB, gave(a=1), gave(a=1, b=8))
in_runs(
    "no-decode-no-hold",
    "a decode that may not run yet",
    state(decode("a", eligible_at=1), chunk("b")),
    gave(),
    gave(b=8),
    says="scheduled: {}, and without the throttle {'b': 8}",
)

in_runs("no-empty-step", "fewer", AB, gave(a=1), gave(a=1, b=8))
in_runs("no-empty-step", "none in both", AB, gave(), gave())
in_runs("no-empty-step", "some for none", AB, gave(a=1), gave())
in_runs(
    "no-empty-step",
    "none",
    AB,
    gave(),
    gave(b=8),
    says="nothing scheduled (the decodes got nothing); without the throttle {'b': 8}",
)

in_runs("throttle-never-evicts", "nobody", AB, gave(a=1), gave(a=1, b=8))
in_runs("throttle-never-evicts", "who would have had nothing", AB, {"evictions": GONE, **gave(a=1)}, gave(a=1))
in_runs(
    "throttle-never-evicts",
    "who would have had something",
    AB,
    {"evictions": GONE, **gave(a=1)},
    gave(a=1, b=8),
    says="b was preempted, and got 8 tokens without the throttle",
)
