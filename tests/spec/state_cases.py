"""Cases of one state."""

from onbeat_spec.records import Place
from tests.spec.builders import chunk, decode, fresh, landed, loading, partial, state
from tests.spec.cases import in_state

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
    "somebody outgrew its prompt by what is missing",
    state(decode("a", num_blocks=4), chunk("b"), promised=8),
)
in_state(
    "full-sequence-fits",
    "somebody outgrew its prompt by less",
    state(decode("a", num_blocks=4), chunk("b"), promised=9),
    "9 blocks are promised, 5 free, and requests outgrew theirs by 3 at most",
)
in_state(
    "full-sequence-fits",
    "what a chunk took beyond its prompt counts too: it may have been a decode",
    state(chunk("a", num_blocks=4), promised=9),
)
in_state(
    "full-sequence-fits",
    "what its prompt needs was promised to itself",
    state(chunk("a", num_blocks=4, num_prompt=28), promised=7),
    "7 blocks are promised, 6 free, and requests outgrew theirs by 0 at most",
)
in_state(
    "full-sequence-fits",
    "a promise for more than the prompt counts as taken",
    state(chunk("a", reserved=4), promised=11),
)
in_state("full-sequence-fits", "nobody holds any", state(promised=11), "11 blocks are promised, 10 free, and requests")
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
