"""The pool with block ids: it counts as the arithmetic does, and what its cache finds is really there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat_reference import BlockPool, CountingPool, Request
from tests.reference.helpers import conserved, examples, request, text

# --- Without a cache it is a CountingPool ----------------------------------------------------------------------------

CALLS = ("grow", "reserve", "release", "commit", "forget", "reset", "match", "held")
SEQUENCE = st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 3), st.integers(0, 30)), max_size=40)


def call(pool: CountingPool, requests: list[Request], what: str, who: int, number: int) -> object:
    """Do it; return what the pool answered."""
    each = requests[who]
    answer: object = None
    match what:
        case "grow":
            answer = pool.grow(each, number)
            if answer:
                each.num_computed = max(each.num_computed, min(number, each.num_tokens))
        case "reserve":
            pool.reserve(each, each.num_tokens)
        case "release":
            answer = pool.releasable(each), pool.release(each)
            each.num_computed = 0
        case "commit":
            pool.commit(each)
        case "forget":
            pool.forget(each, number)
        case "reset":
            pool.reset_cache()
        case "match":
            answer = pool.match(each), pool.need(each, number)
            pool.attach(each)
        case "held":
            answer = pool.held(requests[: who + 1])
    return answer


@examples(100)
@given(num_blocks=st.integers(1, 10), block_size=st.integers(1, 4), sequence=SEQUENCE)
def test_without_a_cache_it_refines_the_arithmetic(
    num_blocks: int, block_size: int, sequence: list[tuple[str, int, int]]
) -> None:
    plain, pool = CountingPool(num_blocks, block_size), BlockPool(num_blocks, block_size)
    twins, requests = ([request(id, text("same", 20)) for id in "abcd"] for _ in range(2))
    for step in sequence:
        assert call(plain, twins, *step) == call(pool, requests, *step)
        assert (plain.free, plain.promised) == (pool.free, pool.promised)
        for twin, each in zip(twins, requests, strict=True):
            assert (twin.num_blocks, twin.reserved) == (each.num_blocks, each.reserved)
            assert plain.releasable(twin) == pool.releasable(each)
        conserved(pool, requests)


# --- With a cache: any sequence of calls -----------------------------------------------------------------------------


class World:
    """A pool with a cache, requests that use it as a scheduler does, and what is really in each block.

    Attributes:
        content: for every block whose KV is complete and valid: the salt, and all tokens up to its end.
        idle_since: when a block was last given back.
    """

    def __init__(self, num_blocks: int, block_size: int, prompts: list[tuple[list[int], str]]) -> None:
        self.pool = BlockPool(num_blocks, block_size, enable_prefix_caching=True)
        self.requests = [request(f"r{i}", prompt, salt=salt) for i, (prompt, salt) in enumerate(prompts)]
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.idle_since: dict[int, int] = {}
        self.clock = 0

    def prefix(self, each: Request, blocks: int) -> tuple[str, tuple[int, ...]]:
        return each.cache_salt, tuple(each.tokens[: blocks * self.pool.block_size])

    def match(self, each: Request) -> int:
        """Look up; hold the hits against what is in the blocks, and their number against all that is findable."""
        pool = self.pool
        found = pool.match(each)
        assert found == len(each.hits) * pool.block_size < each.num_tokens
        assert [self.content[block] for block in each.hits] == [self.prefix(each, i + 1) for i in range(len(each.hits))]
        findable = {self.content[block] for block in pool._hash_of}
        most = (each.num_tokens - 1) // pool.block_size
        longest = next((i for i in range(most) if self.prefix(each, i + 1) not in findable), most)
        assert len(each.hits) == longest
        return found

    def admit(self, each: Request, tokens: int) -> None:
        pool = self.pool
        if each.num_blocks:
            return
        found = self.match(each)
        end = min(each.num_tokens, found + max(1, tokens))
        need, free = pool.need(each, end), pool.free
        if pool.need(each, each.num_tokens) > free:
            return
        pool.attach(each)
        assert each.hits == []
        each.num_computed = found
        assert self.compute(each, end - found)
        assert free - pool.free == need
        pool.reserve(each, each.num_tokens)

    def compute(self, each: Request, tokens: int) -> bool:
        """Grow and fill the blocks; see whose blocks were taken."""
        pool = self.pool
        start = each.num_computed
        end = min(each.num_tokens, start + tokens)
        blank, idle = len(pool._blank), sorted(pool._idle, key=self.idle_since.__getitem__)
        held = each.num_blocks
        before = (pool.free, list(pool.refs), list(each.blocks))
        if not pool.grow(each, end):
            assert pool.blocks_for(end) - held > before[0]
            assert (pool.free, list(pool.refs), list(each.blocks)) == before
            return False
        taken = each.blocks[held:]
        reused = [block for block in taken if block in idle]
        assert reused == idle[: max(0, len(taken) - blank)]  # blank ones first, then the longest unused
        for block in taken:
            self.content.pop(block, None)
        each.num_computed = end
        for i in range(start // pool.block_size, end // pool.block_size):
            self.content[each.blocks[i]] = self.prefix(each, i + 1)
        return True

    def release(self, each: Request) -> None:
        pool = self.pool
        others = {block for other in self.requests if other is not each for block in other.blocks}
        back = [block for block in each.blocks if block not in others]
        assert pool.releasable(each) == len(back)
        for block in reversed(back):
            self.clock += 1
            self.idle_since[block] = self.clock
        free = pool.free
        assert pool.release(each) == len(back) == pool.free - free
        each.num_computed = 0

    def forget(self, each: Request, from_block: int) -> None:
        """The blocks from there on turn out bad; those of others are computed by them all the same."""
        pool = self.pool
        pool.forget(each, from_block)
        for block in each.blocks[from_block:]:
            assert block not in pool._hash_of
            if pool.refs[block] == 1:
                self.content.pop(block, None)
        each.num_computed = min(each.num_computed, from_block * pool.block_size)

    def commit(self, each: Request) -> None:
        """Twice is once."""
        pool = self.pool
        pool.commit(each)
        once = dict(pool._by_hash)
        pool.commit(each)
        assert pool._by_hash == once
        full = min(each.num_computed, each.num_tokens) // pool.block_size
        findable = {self.content[block] for block in pool._hash_of}
        assert {self.prefix(each, i + 1) for i in range(full)} <= findable

    def append(self, each: Request) -> None:
        if len(each.tokens) < 14:
            each.tokens.append(len(each.tokens) % 2)
            each.num_tokens += 1

    def apply(self, what: str, who: int, number: int) -> None:
        each = self.requests[who % len(self.requests)]
        match what:
            case "admit":
                self.admit(each, number)
            case "compute" if each.num_blocks:
                self.compute(each, number)
            case "append":
                self.append(each)
            case "commit" if each.num_blocks:
                self.commit(each)
            case "end":
                self.commit(each)
                self.release(each)
            case "release":
                self.release(each)
            case "forget":
                self.forget(each, number)
            case "reset":
                self.pool.reset_cache()
                assert self.match(each) == 0
            case "match" if not each.num_blocks:
                self.match(each)
        conserved(self.pool, self.requests)


KINDS = [*["admit"] * 4, *["compute"] * 3, *["end"] * 3, "append", "commit", "release", "forget", "match", "reset"]


@examples(300)
@given(
    num_blocks=st.integers(2, 9),
    block_size=st.integers(1, 3),
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.sampled_from(["", "", "salt"])),
        min_size=2,
        max_size=5,
    ),
    sequence=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 4), st.integers(0, 5)), max_size=50),
)
def test_what_the_cache_finds_is_there(
    num_blocks: int, block_size: int, prompts: list[tuple[list[int], str]], sequence: list[tuple[str, int, int]]
) -> None:
    world = World(num_blocks, block_size, prompts)
    for step in sequence:
        world.apply(*step)
    for each in world.requests:
        world.release(each)
        conserved(world.pool, world.requests)
    assert (world.pool.free, world.pool.promised) == (num_blocks, 0)


# --- With a cache: one thing at a time -------------------------------------------------------------------------------


def pool_of(num_blocks: int, *done: Request) -> BlockPool:
    """A pool with blocks of 4 tokens, in which these requests were computed, one after the other, and ended."""
    pool = BlockPool(num_blocks, 4, enable_prefix_caching=True)
    for each in done:
        run(pool, each)
        end(pool, each)
    return pool


def run(pool: BlockPool, each: Request) -> Request:
    """Compute a whole request."""
    each.num_computed = pool.match(each)
    pool.attach(each)
    assert pool.grow(each, each.num_tokens)
    each.num_computed = each.num_tokens
    pool.commit(each)
    return each


def end(pool: BlockPool, each: Request) -> None:
    pool.release(each)
    each.num_computed = 0


P12 = text("p", 12)


@pytest.mark.parametrize(
    ("prompt", "hit"),
    [
        (P12[:4], 0),  # never all tokens
        (P12[:5], 4),
        (P12[:8], 4),
        (P12[:9], 8),
        (P12, 8),
        ([*P12, 1], 12),
        ([*P12, 1, 2, 3, 4, 5], 12),
        (P12[:3], 0),
        ([1, *P12], 0),
        ([*P12[:4], 0, *P12[5:], 1], 4),  # the third block has the same tokens behind other ones
        (P12[4:], 0),
        (P12[:1], 0),
    ],
)
def test_a_match_is_the_longest_prefix_short_of_the_last_token(prompt: list[int], hit: int) -> None:
    pool = pool_of(9, request("a", P12))
    assert pool.match(request("b", prompt)) == hit


def test_sampled_tokens_are_found_again_as_well() -> None:
    pool, a = pool_of(9), request("a", P12[:6])
    run(pool, a)
    a.tokens += [91, 92, 93]
    a.num_tokens = 9
    pool.grow(a, 8)
    a.num_computed = 8  # the last one sampled is not computed
    pool.commit(a)
    assert pool.match(request("b", [*P12[:6], 91, 92, 0])) == 8
    assert pool.match(request("c", [*P12[:6], 91, 0, 0])) == 4


def test_what_is_not_computed_is_not_found() -> None:
    pool, a = pool_of(9), request("a", P12)
    pool.grow(a, 12)
    a.num_computed = 7
    pool.commit(a)
    assert pool.match(request("b", [*P12, 1])) == 4


def test_tokens_in_flight_are_not_found() -> None:
    """Drafts and placeholders are computed beyond the known tokens: their block is not full of known ones."""
    pool, a = pool_of(9), request("a", P12[:6])
    pool.grow(a, 9)
    a.num_computed = 9
    pool.commit(a)
    assert pool.match(request("b", [*P12, 1])) == 4


def test_without_caching_nothing_is_found() -> None:
    pool, a, b = BlockPool(9, 4), request("a", P12), request("b", P12)
    end(pool, run(pool, a))
    assert pool.match(b) == 0
    assert a.hashes == b.hashes == []  # and nothing is spent on it


def test_a_salt_separates() -> None:
    pool = pool_of(9, request("a", P12, salt="one"))
    assert pool.match(request("b", P12, salt="one")) == 8
    assert pool.match(request("c", P12, salt="two")) == 0
    assert pool.match(request("d", P12)) == 0


def test_a_new_look_up_replaces_the_last() -> None:
    pool, b = pool_of(9, request("a", P12)), request("b", P12)
    pool.match(b)
    assert len(b.hits) == 2
    pool.match(b)
    assert len(b.hits) == 2
    pool.reset_cache()
    pool.match(b)
    assert b.hits == []


# Sharing.


def test_a_hit_that_somebody_holds_costs_nothing() -> None:
    pool = pool_of(9)
    a, b = run(pool, request("a", P12)), request("b", [*P12[:8], 1, 2])
    pool.match(b)
    assert pool.need(b, 10) == 1
    pool.attach(b)
    assert (pool.free, b.num_blocks, b.blocks) == (6, 2, a.blocks[:2])
    assert pool.need(b, 10) == 1
    assert [pool.refs[block] for block in a.blocks] == [2, 2, 1]
    assert pool.held([a, b]) == 3
    conserved(pool, [a, b])


def test_a_hit_that_nobody_holds_costs_its_block() -> None:
    pool, b = pool_of(9, request("a", P12)), request("b", [*P12[:8], 1, 2])
    pool.match(b)
    assert pool.need(b, 10) == 3
    pool.attach(b)
    assert (pool.free, b.num_blocks) == (7, 2)
    conserved(pool, [b])


def test_shared_blocks_return_with_their_last_holder() -> None:
    pool = pool_of(9)
    a = run(pool, request("a", P12))
    b = run(pool, request("b", [*P12[:8], 1, 2]))
    assert pool.free == 5
    assert (pool.releasable(a), pool.releasable(b)) == (1, 1)
    assert pool.release(a) == 1
    assert (pool.free, pool.releasable(b)) == (6, 3)
    assert pool.match(request("c", [*P12, 0])) == 12  # held or not
    assert pool.release(b) == 3
    assert pool.free == 9
    conserved(pool, [a, b])


def test_somebody_whose_blocks_are_all_shared_gives_nothing_back() -> None:
    pool, a, b = pool_of(9), request("a", [*P12[:8], 1]), request("b", [*P12[:8], 2])
    run(pool, a)
    pool.match(b)
    pool.attach(b)
    assert (pool.releasable(b), pool.release(b), pool.free) == (0, 0, 6)
    assert a.num_blocks == 3


def test_of_two_equal_blocks_the_first_is_found() -> None:
    pool, a, b = pool_of(9), request("a", P12[:8]), request("b", P12[:8])
    for each in (a, b):  # both computed at the same time, before either was committed
        pool.grow(each, 8)
        each.num_computed = 8
    for each in (a, b):
        pool.commit(each)
    c = request("c", P12)
    pool.match(c)
    assert c.hits == a.blocks
    pool.release(b)  # whose copies nobody can find: they are blank
    conserved(pool, [a, b])
    pool.match(c)
    assert c.hits == a.blocks


# Reuse.


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool, b = pool_of(5, request("a", P12)), request("b", 8)
    run(pool, b)
    assert pool.match(request("c", [*P12, 1])) == 12
    conserved(pool, [b])


def test_the_longest_unused_goes_first_and_of_a_chain_its_tail() -> None:
    """Six blocks: a's three, then b's two, and a blank one. Each newcomer takes one block more than there were."""
    old, young = [*P12, 0], [*text("q", 8), 0]
    pool = pool_of(6, request("a", P12), request("b", young[:8]))
    found = []
    held: list[Request] = []
    for turn in range(6):
        held.append(run(pool, request(f"n{turn}", text(f"n{turn}", 4))))
        found.append((pool.match(request("x", old)), pool.match(request("y", young))))
        conserved(pool, held)
    assert found == [(12, 8), (8, 8), (4, 8), (0, 8), (0, 4), (0, 0)]


def test_use_makes_young() -> None:
    old, young = request("a", P12[:4]), request("b", text("q", 4))
    pool = pool_of(2, old, young)
    again = request("c", P12[:5])
    pool.match(again)
    pool.attach(again)
    end(pool, again)
    run(pool, request("n", 4))
    assert pool.match(request("x", P12)) == 4
    assert pool.match(request("y", text("q", 5))) == 0


def test_a_block_in_use_is_never_taken() -> None:
    pool = pool_of(3)
    a = run(pool, request("a", P12[:8]))
    assert not pool.grow(request("b", 8), 8)
    assert pool.match(request("c", P12)) == 8
    conserved(pool, [a])


def test_a_reused_block_is_found_no_more_by_its_old_name() -> None:
    pool, b = pool_of(1, request("a", P12[:4])), request("b", 4)
    run(pool, b)
    assert pool.match(request("c", P12)) == 0
    assert pool.match(request("d", [*b.tokens, 1])) == 4


# Forgetting.


def test_reset_forgets_everything_and_takes_nothing_from_anybody() -> None:
    pool = pool_of(9, request("a", P12))
    b = run(pool, request("b", text("q", 8)))
    blocks = list(b.blocks)
    pool.reset_cache()
    assert pool.match(request("c", P12)) == pool.match(request("d", [*b.tokens, 1])) == 0
    assert (pool.free, b.blocks) == (7, blocks)
    conserved(pool, [b])
    pool.commit(b)  # what is computed is computed
    assert pool.match(request("d", [*b.tokens, 1])) == 8
    pool.release(b)
    conserved(pool, [b])


@pytest.mark.parametrize(("from_block", "hit"), [(0, 0), (1, 4), (2, 8), (3, 12), (9, 12)])
def test_bad_blocks_are_forgotten_from_the_first_on(from_block: int, hit: int) -> None:
    pool = pool_of(9)
    a = run(pool, request("a", P12))
    pool.forget(a, from_block)
    assert pool.match(request("b", [*P12, 1])) == hit
    assert (a.num_blocks, pool.free) == (3, 6)
    conserved(pool, [a])
    pool.release(a)
    conserved(pool, [a])


def test_releasing_twice_returns_nothing_more() -> None:
    pool = pool_of(9)
    a = run(pool, request("a", P12))
    assert pool.release(a) == 3
    assert pool.release(a) == 0
    conserved(pool, [a])
