"""Every predicate over a state, a step or two runs: shown to hold, and shown to fail, on hand-made facts.

A case is an invariant, a scope, what the predicate is called with, and what it says (None: it holds). The last test
sees to it that no registered predicate is without both.
"""

from typing import Any

import pytest

from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config
from onbeat_spec.invariants.words import better, decodes
from onbeat_spec.records import Eviction, Facts, Place, State
from tests.spec.builders import CONFIG, chunk, decode, facts, fresh, landed, loading, partial, state

CACHING = Config(block_size=4, num_blocks=10, enable_prefix_caching=True)
PRIORITY = Config(block_size=4, num_blocks=10, scheduling="priority")

Case = tuple[str, str, tuple[Any, ...], str | None]
CASES: list[tuple[str, Case]] = []


def holds(about: str, invariant: str, scope: str, *arguments: object) -> None:
    CASES.append((f"{invariant}, {scope}: {about}", (invariant, scope, arguments, None)))


def fails(about: str, invariant: str, scope: str, *arguments: object, says: str) -> None:
    CASES.append((f"{invariant}, {scope}: {about}", (invariant, scope, arguments, says)))


# --- One state -------------------------------------------------------------------------------------------------------


def in_state(invariant: str, about: str, seen: State, says: str | None = None, config: Config = CONFIG) -> None:
    if says is None:
        holds(about, invariant, "state", config, seen)
    else:
        fails(about, invariant, "state", config, seen, says=says)


RUN = decode("a"), decode("b"), fresh("c"), loading("d")

in_state("slots", "all taken", state(*RUN))
in_state(
    "slots",
    "one too many",
    state(*RUN, landed("e")),
    "4 requests hold a slot (2 run); max_num_seqs is 3",
)

in_state("blocks-conserved", "free and held make the pool", state(*RUN))
in_state("blocks-conserved", "at rest", state())
in_state("blocks-conserved", "a part does not say", partial(*RUN, free=3))
in_state("blocks-conserved", "one leaked", state(*RUN, free=6), "6 free and 3 held blocks do not make 10")
in_state("blocks-conserved", "one held twice", state(*RUN, held=2), "7 free and 2 held blocks do not make 10")
in_state("blocks-conserved", "all leaked at rest", state(free=0), "0 free and 0 held blocks do not make 10")
in_state(
    "blocks-conserved",
    "a promise outlives everybody",
    state(fresh("a"), promised=2),
    "2 blocks are promised though nobody holds any",
)

in_state("full-sequence-fits", "promises fit into what is free", state(chunk("a"), promised=9))
in_state("full-sequence-fits", "one block too few", state(chunk("a"), promised=10), "10 blocks are promised, 9 free")
in_state(
    "full-sequence-fits",
    "decodes grew by what is missing",
    state(decode("a", num_blocks=4), chunk("b"), promised=8),
)
in_state(
    "full-sequence-fits",
    "decodes grew by less",
    state(decode("a", num_blocks=4), chunk("b"), promised=9),
    "9 blocks are promised, 5 free, and decodes grew by 3 at most",
)
in_state(
    "full-sequence-fits",
    "what a chunk holds it was promised itself",
    state(chunk("a", num_blocks=4), promised=7),
    "7 blocks are promised, 6 free, and decodes grew by 0 at most",
)
in_state(
    "full-sequence-fits",
    "whose growth a shared block is nobody knows",
    state(chunk("a", num_blocks=4), promised=9),
    config=CACHING,
)
in_state(
    "full-sequence-fits",
    "shared blocks, and more promised than anybody can have grown",
    state(chunk("a", num_blocks=4), promised=10),
    "10 blocks are promised, 6 free, and decodes grew by 3 at most",
    config=CACHING,
)
in_state(
    "full-sequence-fits", "nobody holds any", state(promised=11), "11 blocks are promised, 10 free, and decodes gr"
)
in_state("full-sequence-fits", "a part does not say", partial(chunk("a"), promised=11))

in_state("one-place", "each in its list", state(*RUN))
in_state("one-place", "ended while loading", state(*RUN, loading("e", place=Place.FINISHED)))
in_state("one-place", "twice in one list", state(*RUN, running=("a", "b", "a")), "a stands in running and in running")
in_state("one-place", "in two lists", state(*RUN, waiting=("c", "a")), "a stands in running and in waiting")
in_state("one-place", "in the parked list as well", state(*RUN, parked=("d", "c")), "c stands in waiting and in parked")
in_state("one-place", "in no list", state(*RUN, running=("a",)), "b is running and does not stand there")
in_state("one-place", "in another's list", state(*RUN, waiting=(), parked=("d", "c")), "c is waiting and does not")
in_state(
    "one-place",
    "ended and still listed",
    state(decode("a", place=Place.FINISHED), running=("a",)),
    "a is finished and does not stand there",
)
in_state("one-place", "listed and not live", state(*RUN, running=("a", "b", "x", "y")), "x, y stand in a list")

in_state("exactly-once", "nothing awaited at rest", state(*RUN))
in_state("exactly-once", "one token for each step in flight", state(decode("a", num_placeholders=2), in_flight=2))
in_state("exactly-once", "all known is computed", state(decode("a", num_computed=5)))
in_state(
    "exactly-once",
    "the next token is computed in advance",
    state(decode("a", num_placeholders=1, num_computed=6), in_flight=1),
)
in_state(
    "exactly-once",
    "one token came twice",
    state(decode("a", num_placeholders=-1), in_flight=1),
    "a awaits -1 tokens with 1 steps in flight",
)
in_state(
    "exactly-once",
    "awaited from nobody",
    state(decode("a"), decode("b", num_placeholders=1)),
    "b awaits 1 tokens with 0 steps in flight",
)
in_state("exactly-once", "computed in vain", state(decode("a", num_computed=6)), "a has 6 tokens computed of 5 known")


# --- One step --------------------------------------------------------------------------------------------------------


def in_step(invariant: str, about: str, seen: Facts, says: str | None = None) -> None:
    if says is None:
        holds(about, invariant, "step", seen)
    else:
        fails(about, invariant, "step", seen, says=says)


AB = state(decode("a"), chunk("b"))

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

FLAGGED = state(decode("a"), chunk("b"), saturated=True)
GONE = [Eviction("b", "a", 1)]
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
    "flag-means-backlog", "left, and no flag", facts(LEFT), "the flag is False and the admissible work left is ['c'"
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


def let_in(id: str, given: int = 8) -> dict[str, Any]:
    return {"admitted": [id], "scheduled": {id: given}}


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

RAN = state(decode("a", num_computed=5), chunk("b", num_computed=12))
in_step("visit-once", "everybody has what he was given", facts(AB, RAN, scheduled={"a": 1, "b": 8}))
in_step(
    "visit-once",
    "drafts beside its token",
    facts(
        state(decode("a", num_drafts=2)),
        state(decode("a", num_computed=7, num_placeholders=3)),
        scheduled={"a": 3},
        drafts={"a": 2},
    ),
)
in_step(
    "visit-once", "served twice", facts(AB, RAN, scheduled={"a": 1, "b": 4}), "b was given 4 tokens and booked with 8"
)
in_step("visit-once", "served for nothing", facts(AB, AB, scheduled={"a": 1}), "a was given 1 tokens and booked with 0")
in_step(
    "visit-once",
    "more tokens than work",
    facts(AB, state(decode("a", num_computed=6), chunk("b")), scheduled={"a": 2}),
    "a was given 2 tokens for 1 of work and 0 drafts",
)
in_step(
    "visit-once",
    "more drafts than were proposed",
    facts(state(decode("a", num_drafts=1)), state(decode("a", num_computed=7)), scheduled={"a": 3}, drafts={"a": 2}),
    "a was given 3 tokens for 1 of work and 1 drafts",
)
in_step(
    "visit-once",
    "a chunk may go without",
    facts(AB, state(decode("a", num_computed=5), chunk("b")), scheduled={"a": 1}),
)
TWO = state(decode("a"), decode("b"))
ONE_RAN = state(decode("a", num_computed=5), decode("b"))
in_step("visit-once", "a decode is skipped", facts(TWO, ONE_RAN, scheduled={"a": 1}), "decode b got no token though 15")
in_step("visit-once", "it may not run yet", facts(state(decode("b", eligible_at=2)), index=1))
in_step("visit-once", "it may run from this step on", facts(state(decode("b", eligible_at=2)), index=2), "decode b got")
in_step("visit-once", "its last token is in flight", facts(state(decode("b", num_placeholders=1, limit=6))))
in_step("visit-once", "it sat the step out", facts(TWO, ONE_RAN, scheduled={"a": 1}, sat_out=["b"]))
in_step("visit-once", "the step is paused", facts(TWO, open=False))
in_step(
    "visit-once",
    "it was preempted",
    facts(TWO, state(decode("a", num_computed=5), fresh("b")), scheduled={"a": 1}, evictions=GONE),
)
in_step("visit-once", "it ended meanwhile", facts(TWO, state(decode("a", num_computed=5)), scheduled={"a": 1, "b": 1}))
ONE_TOKEN = Config(block_size=4, num_blocks=10, max_num_batched_tokens=1)
in_step("visit-once", "the step is full of decodes", facts(TWO, ONE_RAN, ONE_TOKEN, scheduled={"a": 1}))
in_step(
    "visit-once",
    "a chunk filled the step",
    facts(
        state(decode("a"), chunk("b", num_tokens=20)),
        state(decode("a"), chunk("b", num_tokens=20, num_computed=20)),
        scheduled={"b": 16},
    ),
    "decode a got no token though 16 were left",
)
in_step(
    "visit-once",
    "what filled the step was admitted",
    facts(
        state(decode("a"), fresh("c", num_tokens=16)),
        state(decode("a"), chunk("c", num_computed=16)),
        **let_in("c", 16),
    ),
    "decode a got no token though 16 were left",
)
in_step("visit-once", "a part, and the step is full of newcomers", facts(partial(decode("a")), **let_in("x", 16)))
in_step("visit-once", "a part, and the step is full", facts(partial(decode("a")), scheduled={"x": 16}))
in_step(
    "visit-once", "a part, and a decode is skipped", facts(partial(decode("a")), scheduled={"x": 15}), "though 1 were"
)

OUT = state(decode("a", num_computed=5), fresh("b"))
in_step("evicted-is-out", "back in the queue", facts(AB, OUT, scheduled={"a": 1}, evictions=GONE))
for where in ({"scheduled": {"a": 1, "b": 1}}, {"drafts": {"b": 1}}, {"admitted": ["b"]}):
    in_step(
        "evicted-is-out",
        f"still {next(iter(where))}",
        facts(AB, OUT, evictions=GONE, **where),
        "b was preempted and is in the step's output",
    )
for place in (Place.RUNNING, Place.PARKED, Place.FINISHED):
    in_step(
        "evicted-is-out",
        f"is {place.value}",
        facts(AB, state(decode("a"), fresh("b", place=place)), evictions=GONE),
        f"b was preempted and is {place.value}",
    )
for count in ("num_computed", "num_placeholders", "num_drafts"):
    in_step(
        "evicted-is-out",
        f"keeps {count}",
        facts(AB, state(decode("a"), fresh("b", **{count: 1})), evictions=GONE),
        "b was preempted and keeps counts of its lost KV",
    )
for count, kept in (("num_blocks", "1 blocks, 0 promised"), ("reserved", "0 blocks, 1 promised")):
    in_step(
        "evicted-is-out",
        f"keeps {count}",
        facts(AB, state(decode("a"), fresh("b", **{count: 1})), evictions=GONE),
        f"b was preempted and keeps {kept}",
    )

in_step("victim-can-pay", "it paid", facts(AB, evictions=[Eviction("b", "a", 1)]))
in_step("victim-can-pay", "it was its own victim", facts(AB, evictions=[Eviction("b", "b", 0)]))
in_step(
    "victim-can-pay", "it had nothing", facts(AB, evictions=[Eviction("b", "a", 0)]), "b was preempted for a and rel"
)

GREW = state(decode("a", num_blocks=2), chunk("b"))
in_step("all-or-nothing", "served", facts(AB, GREW, scheduled={"a": 1}))
in_step("all-or-nothing", "not served, not grown", facts(AB))
in_step("all-or-nothing", "preempted", facts(AB, OUT, scheduled={"a": 1}, evictions=GONE))
in_step("all-or-nothing", "ended meanwhile", facts(AB, state(decode("a"))))
in_step("all-or-nothing", "grown and not served", facts(AB, GREW), "a got no tokens and went from 1 to 2 blocks")
in_step(
    "all-or-nothing",
    "a block lost in passing",
    facts(AB, state(decode("a"), chunk("b", num_blocks=0)), scheduled={"a": 1}),
    "b got no tokens and went from 1 to 0 blocks",
)

NEWCOMER = state(fresh("c"))
in_step("full-sequence-fits", "blocks and promises for all", facts(NEWCOMER, state(chunk("c")), **let_in("c", 4)))
in_step(
    "full-sequence-fits",
    "a block too few",
    facts(NEWCOMER, state(chunk("c", reserved=1)), **let_in("c", 4)),
    "c has 1 blocks and 1 promised for 12 tokens",
)
in_step(
    "full-sequence-fits",
    "a load without a promise",
    facts(NEWCOMER, state(loading("c", reserved=0)), loading=["c"]),
    "c has 1 blocks and 0 promised for 8 tokens",
)
in_step("full-sequence-fits", "a load with one", facts(NEWCOMER, state(loading("c")), loading=["c"]))
in_step(
    "full-sequence-fits",
    "promises up to the last free block",
    facts(NEWCOMER, state(chunk("c"), promised=9), **let_in("c")),
)
in_step(
    "full-sequence-fits",
    "a promise that cannot be kept",
    facts(NEWCOMER, state(chunk("c"), promised=10), **let_in("c", 4)),
    "after admitting c 10 blocks are promised and 9 free",
)
in_step("full-sequence-fits", "nobody came", facts(NEWCOMER, state(chunk("c"), promised=10)))

in_step("oldest-finishes", "the younger pays for the older", facts(AB, evictions=[Eviction("b", "a", 1)]))
in_step(
    "oldest-finishes",
    "the older pays for the younger",
    facts(AB, evictions=[Eviction("a", "b", 1)]),
    "a was preempted for the younger b",
)
in_step(
    "oldest-finishes",
    "for one who holds none yet",
    facts(state(decode("a", num_blocks=0), decode("b")), evictions=[Eviction("b", "a", 1)]),
)
WORSE = state(decode("a", priority=1), decode("b"))
in_step(
    "oldest-finishes", "the worse pays, though older", facts(WORSE, config=PRIORITY, evictions=[Eviction("a", "b", 1)])
)
in_step(
    "oldest-finishes",
    "the better pays, though younger",
    facts(WORSE, config=PRIORITY, evictions=[Eviction("b", "a", 1)]),
    "b was preempted for the younger a",
)
in_step(
    "oldest-finishes",
    "priorities count only where they rule",
    facts(WORSE, evictions=[Eviction("a", "b", 1)]),
    "a was preempted for the younger b",
)
in_step("oldest-finishes", "itself, while others hold blocks", facts(AB, evictions=[Eviction("a", "a", 1)]))
ALONE = state(decode("a"), fresh("b"))
in_step(
    "oldest-finishes",
    "itself, and nobody else holds any",
    facts(ALONE, evictions=[Eviction("a", "a", 1)]),
    "a, the only request with blocks, was preempted",
)
in_step(
    "oldest-finishes",
    "a part does not show who holds blocks",
    facts(partial(decode("a")), evictions=[Eviction("a", "a", 1)]),
)

OFFERED = state(fresh("c", remote_tokens=4))
in_step("load-once", "the offer is taken", facts(OFFERED, state(loading("c")), loading=["c"]))
in_step(
    "load-once", "there is none", facts(NEWCOMER, state(loading("c")), loading=["c"]), "c loads though nothing is off"
)
in_step(
    "load-once", "it stands", facts(OFFERED, state(loading("c", remote_tokens=4)), loading=["c"]), "or may load again"
)


# --- Two runs --------------------------------------------------------------------------------------------------------


def in_runs(
    invariant: str,
    about: str,
    before: State,
    throttled: dict[str, Any],
    without: dict[str, Any],
    *,
    says: str | None = None,
    after: State | None = None,
) -> None:
    """`after` is the state after the step without the throttle."""
    runs = facts(before, throttle=True, **throttled), facts(before, after, **without)
    if says is None:
        holds(about, invariant, "runs", *runs)
    else:
        fails(about, invariant, "runs", *runs, says=says)


def gave(**tokens: int) -> dict[str, Any]:
    return {"scheduled": tokens}


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
    says="remote resume d got no tokens, and 7 without the throttle",
)
in_runs("resume-bypasses", "it runs in neither", READY, gave(a=1), gave(a=1, c=8))
in_runs(
    "resume-bypasses",
    "it is held",
    READY,
    gave(a=1),
    gave(a=1, c=8, d=3),
    says="remote resume d got no tokens, and 3 wi",
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
in_runs("no-empty-step", "none", AB, gave(), gave(b=8), says="nothing scheduled, and {'b': 8} without the throttle")

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


# --- The tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[about for about, _ in CASES])
def test_verdict(case: Case) -> None:
    invariant, scope, arguments, says = case
    verdict = getattr(CATALOGUE[invariant], scope)(*arguments)
    if says is None:
        assert verdict is None
    else:
        assert verdict is not None
        assert says in verdict


def test_no_case_hides_another() -> None:
    names = [about for about, _ in CASES]
    assert len(names) == len(set(names))


def test_every_predicate_is_shown_to_hold_and_to_fail() -> None:
    shown = {(invariant, scope, says is None) for _, (invariant, scope, _, says) in CASES}
    registered = {(entry.id, scope) for entry in CATALOGUE.values() for scope in entry.scopes if scope != "history"}
    assert shown == {(*each, verdict) for each in registered for verdict in (True, False)}


# --- The words they use ----------------------------------------------------------------------------------------------


def test_decodes_are_running_short_and_able() -> None:
    seen = state(
        decode("a"),
        chunk("b"),
        decode("c", eligible_at=5),
        decode("d", eligible_at=4),
        decode("e", num_placeholders=1, num_computed=5, limit=6),
        fresh("f", num_tokens=1),
        decode("g", num_computed=5),
    )
    assert [view.id for view in decodes(seen, 4)] == ["a", "d", "g"]


@pytest.mark.parametrize(
    ("one", "other", "fcfs", "priority"),
    [
        (decode("a"), decode("b"), True, True),
        (decode("b"), decode("a"), False, False),
        (decode("a"), decode("a"), False, False),
        (decode("a", priority=1), decode("b"), True, False),
        (decode("b"), decode("a", priority=1), False, True),
    ],
)
def test_better_is_by_priority_if_that_counts_and_by_age(one: Any, other: Any, fcfs: bool, priority: bool) -> None:
    assert better(CONFIG, one, other) is fcfs
    assert better(PRIORITY, one, other) is priority
