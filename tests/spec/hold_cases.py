"""Cases of one step: what it gives, holds back and lets in, and what it writes into the flag."""

from typing import Any

from onbeat_spec.records import Eviction, Place, State
from tests.spec.builders import chunk, decode, facts, fresh, landed, loading, partial, state
from tests.spec.cases import AB, FLAGGED, GONE, PRIORITY, in_step, let_in

in_step("budget", "all of it", facts(AB, scheduled={"a": 4, "b": 12}, drafts={"a": 3}))
in_step("budget", "one token more", facts(AB, scheduled={"a": 4, "b": 13}), "17 tokens scheduled; max_num_batched")
in_step("budget", "drafts alone", facts(AB, scheduled={"a": 3}, drafts={"a": 3}), "a has 3 drafts in 3 scheduled")
in_step("budget", "drafts of somebody else", facts(AB, scheduled={"a": 3}, drafts={"b": 1}), "b has 1 drafts in 0")

in_step("decode-never-held", "a chunk is held", facts(AB, held=["b"]))
in_step("decode-never-held", "a short newcomer is another matter", facts(state(fresh("a", num_tokens=1)), held=["a"]))
in_step("decode-never-held", "a decode is held", facts(AB, held=["b", "a"]), "decode a was held")
in_step(
    "decode-never-held",
    "one whose token is in flight",
    facts(state(decode("a", num_placeholders=1, num_computed=5)), held=["a"]),
    "decode a was held",
)

in_step("resume-bypasses", "a newcomer is held", facts(state(fresh("a"), landed("b")), held=["a"]))
in_step("resume-bypasses", "a chunk of a loaded request", facts(state(chunk("a", external=4)), held=["a"]))
in_step(
    "resume-bypasses",
    "a landed one is held",
    facts(state(fresh("a"), landed("b")), held=["a", "b"]),
    "b, a remote resume with 4 loaded tokens, was held",
)

in_step(
    "resume-bypasses",
    "one that loaded a single token",
    facts(state(landed("b", external=1, num_computed=1)), held=["b"]),
    "b, a remote resume with 1 loaded tokens, was held",
)

in_step("one-token-passes", "two tokens are held", facts(state(fresh("a", num_tokens=2)), held=["a"]))
in_step(
    "one-token-passes",
    "one token is held",
    facts(state(fresh("a"), fresh("b", num_tokens=1)), held=["a", "b"]),
    "b was held with at most one token of local work",
)
in_step("one-token-passes", "a decode is held", facts(AB, held=["a"]), "a was held")

THROTTLED: dict[str, Any] = {"throttle": True, "hold": True}
LATE = state(fresh("c"), fresh("d", num_tokens=1), landed("e"), decode("a"), chunk("b"))
ADMITTED = state(decode("a"), chunk("b", num_computed=6), fresh("c", num_computed=4, num_blocks=1), landed("e"))
in_step("throttle-holds", "decodes alone", facts(AB, scheduled={"a": 1}, held=["b"], **THROTTLED))
in_step("throttle-holds", "a chunk", facts(AB, scheduled={"a": 1, "b": 2}, **THROTTLED), "chunk b got 2 tokens in a th")
in_step("throttle-holds", "a chunk once the hold is lifted", facts(AB, scheduled={"b": 2}, lifted=True, **THROTTLED))
in_step("throttle-holds", "a chunk without a hold", facts(AB, scheduled={"a": 1, "b": 2}, throttle=True))
in_step(
    "throttle-holds", "a decode that a part leaves out", facts(partial(chunk("b")), scheduled={"a": 1}, **THROTTLED)
)
in_step(
    "throttle-holds",
    "a fresh prefill",
    facts(LATE, ADMITTED, scheduled={"a": 1, "c": 4}, **THROTTLED),
    "fresh prefill c got 4 tokens in a throttled step",
)
in_step(
    "throttle-holds",
    "one token of work, found in the cache or short from the start",
    facts(
        LATE,
        state(fresh("c", num_computed=8, num_blocks=2), fresh("d", num_tokens=1, num_computed=1, num_blocks=1)),
        scheduled={"c": 1, "d": 1},
        **THROTTLED,
    ),
)
in_step("throttle-holds", "a remote resume", facts(LATE, ADMITTED, scheduled={"e": 4}, **THROTTLED))
in_step(
    "throttle-holds",
    "a load within the step",
    facts(LATE, state(fresh("c", num_computed=8, num_blocks=2, external=4)), scheduled={"c": 4}, **THROTTLED),
)

in_step("no-decode-no-hold", "for a decode", facts(AB, held=["b"]))
in_step("no-decode-no-hold", "nobody", facts(state(chunk("b"))))
in_step("no-decode-no-hold", "for a chunk", facts(state(chunk("b"), fresh("c")), held=["b", "c"]), "b, c held though")
in_step(
    "no-decode-no-hold",
    "for a decode that may not run yet",
    facts(state(decode("a", eligible_at=3), chunk("b")), held=["b"], index=2),
    "b held though no decode can run",
)
in_step(
    "no-decode-no-hold",
    "for a decode that may run from this step on",
    facts(state(decode("a", eligible_at=3), chunk("b")), held=["b"], index=3),
)
in_step(
    "no-decode-no-hold",
    "for a decode whose last token is in flight",
    facts(state(decode("a", num_placeholders=1, limit=6), chunk("b")), held=["b"]),
    "b held though no decode can run",
)
in_step(
    "no-decode-no-hold", "nobody has begun", facts(state(fresh("c")), held=["c"]), "c held though no decode can run"
)
in_step("no-decode-no-hold", "a part does not show the decodes", facts(partial(chunk("b")), held=["b"]))

in_step("off-means-off", "held by the throttle", facts(AB, throttle=True, held=["b"]))
in_step("off-means-off", "nobody held", facts(AB))
in_step("off-means-off", "held all the same", facts(AB, held=["b"]), "b held in a step without the throttle")

in_step("no-empty-step", "the decode ran", facts(AB, held=["b"], scheduled={"a": 1}))
in_step("no-empty-step", "nobody was held", facts(AB))
in_step("no-empty-step", "the decode was preempted", facts(AB, held=["b"], evictions=[Eviction("a", "a", 1)]))
in_step("no-empty-step", "nobody ran", facts(AB, held=["b"]), "nothing scheduled while b was held")

in_step("flag-only-when-open", "an open step sets it", facts(AB, FLAGGED))
in_step("flag-only-when-open", "an open step takes it away", facts(FLAGGED, AB))
in_step("flag-only-when-open", "it stays", facts(FLAGGED, hold=True, evictions=GONE, open=False))
in_step("flag-only-when-open", "in a held step", facts(AB, FLAGGED, hold=True), "became True in a step that held")
in_step("flag-only-when-open", "in one that preempted", facts(FLAGGED, AB, evictions=GONE), "became False in a step")
in_step("flag-only-when-open", "in a paused one", facts(AB, FLAGGED, open=False), "became True in a step that was pau")

LEFT = state(decode("a"), fresh("c"))
LEFT_FLAGGED = state(decode("a"), fresh("c"), saturated=True)
in_step("flag-means-backlog", "nobody left", facts(AB))
in_step("flag-means-backlog", "somebody left", facts(LEFT, LEFT_FLAGGED, wrote_flag=True))
in_step("flag-means-backlog", "somebody held", facts(LEFT, hold=True))
in_step("flag-means-backlog", "somebody left by a step that preempted", facts(LEFT, evictions=GONE))
in_step("flag-means-backlog", "somebody left by a paused step", facts(LEFT, open=False))
in_step("flag-means-backlog", "he may not run yet", facts(state(decode("a"), fresh("c", eligible_at=1))))
in_step(
    "flag-means-backlog",
    "left, and no flag",
    facts(LEFT),
    "the flag is False and the admissible work left is waiting c",
)
in_step(
    "flag-means-backlog", "nobody left, and the flag", facts(AB, FLAGGED), "is True and the admissible work left is n"
)
in_step(
    "flag-means-backlog",
    "the flag for one who may not run yet",
    facts(LEFT, state(decode("a"), fresh("c", eligible_at=1), saturated=True)),
    "the flag is True and the admissible work left is none",
)
in_step(
    "flag-means-backlog",
    "a paused step offers nothing, so it may write only that",
    facts(LEFT, LEFT_FLAGGED, open=False, wrote_flag=True),
    "the flag is True and the admissible work left is none",
)
in_step("flag-means-backlog", "a held step that writes false", facts(LEFT, hold=True, wrote_flag=True))

WAITING = state(fresh("a"), fresh("b"), fresh("c"))


def admitted(id: str, *left: Any, given: int = 8, computed: int = 8, **changes: Any) -> State:
    """The state after `id` was admitted and got its tokens; `left` stayed waiting."""
    return state(fresh(id, place=Place.RUNNING, num_computed=computed, num_blocks=2), *left, **changes)


in_step("order-kept", "the oldest", facts(WAITING, admitted("a", fresh("b"), fresh("c")), **let_in("a")))
in_step(
    "order-kept",
    "a younger one",
    facts(WAITING, admitted("b", fresh("a"), fresh("c")), **let_in("b")),
    "fresh prefill b was admitted before the older a",
)
in_step(
    "order-kept",
    "the first few tokens of a younger one",
    facts(WAITING, admitted("b", fresh("a"), fresh("c"), computed=2), **let_in("b", 2)),
    "fresh prefill b was admitted before the older a",
)
in_step(
    "order-kept", "younger than all", facts(WAITING, admitted("c", fresh("a"), fresh("b")), **let_in("c")), "older a"
)
in_step(
    "order-kept",
    "one with a single token left by the cache",
    facts(WAITING, admitted("b", fresh("a"), fresh("c")), **let_in("b", 1)),
)
in_step(
    "order-kept",
    "two tokens left by the cache",
    facts(WAITING, admitted("b", fresh("a"), fresh("c")), **let_in("b", 2)),
    "fresh prefill b",
)
in_step(
    "order-kept",
    "a landed one",
    facts(state(fresh("a"), landed("b")), state(fresh("a"), chunk("b")), **let_in("b", 4)),
)
in_step(
    "order-kept",
    "one whose load failed altogether holds blocks",
    facts(
        state(fresh("a"), landed("b", external=0, num_computed=0)),
        admitted("b", fresh("a")),
        **let_in("b"),
    ),
)
in_step(
    "order-kept",
    "a load within the step",
    facts(
        state(fresh("a"), fresh("b", remote_tokens=4)),
        state(fresh("b", place=Place.RUNNING, num_computed=8, num_blocks=2, external=4), fresh("a")),
        **let_in("b", 4),
    ),
)
in_step(
    "order-kept",
    "an offer that the local cache made needless",
    facts(state(fresh("a"), fresh("b", remote_tokens=4)), admitted("b", fresh("a")), **let_in("b", 4)),
    "fresh prefill b was admitted before the older a",
)
for why, older in (
    ("the older one may not run yet", fresh("a", eligible_at=1)),
    ("the older one waits to load", fresh("a", remote_tokens=4)),
    ("the older one has loaded", landed("a")),
    ("the older one has one token", fresh("a", num_tokens=1)),
    ("the older one has loaded tokens", fresh("a", external=4)),
    ("the older one holds blocks", fresh("a", num_blocks=1)),
):
    in_step("order-kept", why, facts(state(older, fresh("b")), admitted("b", older), **let_in("b")))
in_step(
    "order-kept",
    "the older one has gone to load",
    facts(state(fresh("a"), fresh("b")), admitted("b", loading("a")), **let_in("b")),
)
in_step(
    "order-kept",
    "a better one waits",
    facts(
        state(fresh("a"), fresh("b", priority=-1)),
        admitted("a", fresh("b", priority=-1)),
        PRIORITY,
        **let_in("a"),
    ),
    "fresh prefill a was admitted before the older b",
)
in_step(
    "order-kept",
    "a better one goes first",
    facts(
        state(fresh("a"), fresh("b", priority=-1)),
        state(fresh("b", priority=-1, place=Place.RUNNING, num_computed=8), fresh("a")),
        PRIORITY,
        **let_in("b"),
    ),
)
in_step("order-kept", "those left stand as they stood", facts(WAITING))
in_step("order-kept", "newcomers stand among them", facts(state(fresh("a"), fresh("c")), WAITING))
in_step(
    "order-kept",
    "those left are turned round",
    facts(WAITING, state(fresh("c"), fresh("b"), fresh("a"))),
    "those left waiting stood as ['a', 'b', 'c'] and stand as ['c', 'b', 'a']",
)
in_step(
    "order-kept",
    "a part knows no order",
    facts(partial(fresh("a"), fresh("b")), partial(fresh("b"), fresh("a"))),
)
