"""Cases of one step: who ran, who was preempted, what became of their blocks and loads."""

from onbeat_spec.config import Config
from onbeat_spec.records import Eviction, Place
from tests.spec.builders import chunk, decode, facts, fresh, loading, partial, state
from tests.spec.cases import AB, GONE, PRIORITY, in_step, let_in

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
