"""The pool's arithmetic, without any block ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onbeat_reference import CountingPool, Request
from tests.reference.helpers import examples, request


def counts(pool: CountingPool, *requests: Request) -> tuple[int, ...]:
    """Free and promised blocks, then held and reserved ones of each request."""
    return (pool.free, pool.promised, *[count for each in requests for count in (each.num_blocks, each.reserved)])


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_block_begun_is_a_block_needed(tokens: int, blocks: int) -> None:
    assert CountingPool(10, 4).blocks_for(tokens) == blocks


def test_it_begins_free() -> None:
    pool = CountingPool(10, 4)
    assert (pool.num_blocks, pool.block_size, pool.free, pool.promised) == (10, 4, 10, 0)


# --- Growing ---------------------------------------------------------------------------------------------------------


def test_growing_takes_what_is_missing() -> None:
    pool, a = CountingPool(10, 4), request("a", 20)
    assert pool.grow(a, 5)
    assert counts(pool, a) == (8, 0, 2, 0)
    assert pool.grow(a, 8)  # the second block has room
    assert counts(pool, a) == (8, 0, 2, 0)
    assert pool.grow(a, 9)
    assert counts(pool, a) == (7, 0, 3, 0)


def test_growing_to_less_keeps_all() -> None:
    pool, a = CountingPool(10, 4), request("a", 20)
    pool.grow(a, 12)
    assert pool.grow(a, 1)
    assert counts(pool, a) == (7, 0, 3, 0)


def test_growing_is_all_or_nothing() -> None:
    """B123: five more blocks are asked for and four are free."""
    pool, a, b = CountingPool(6, 4), request("a", 40), request("b", 4)
    pool.grow(b, 4)
    pool.grow(a, 4)
    pool.reserve(a, a.num_tokens)
    before = counts(pool, a, b)
    assert not pool.grow(a, 24)
    assert counts(pool, a, b) == before == (4, 9, 1, 9, 1, 0)
    assert pool.grow(a, 20)
    assert counts(pool, a, b) == (0, 5, 5, 5, 1, 0)


def test_a_full_pool_grows_nobody_who_needs_a_block() -> None:
    pool, a, b = CountingPool(2, 4), request("a", 8), request("b", 4)
    assert pool.grow(a, 8)
    assert pool.grow(a, 7)  # needs none
    assert not pool.grow(b, 1)
    assert counts(pool, a, b) == (0, 0, 2, 0, 0, 0)


# --- Promises --------------------------------------------------------------------------------------------------------


def test_a_promise_is_for_all_known_tokens_not_yet_held() -> None:
    pool, a = CountingPool(10, 4), request("a", 17)
    pool.grow(a, 4)
    pool.reserve(a, a.num_tokens)
    assert counts(pool, a) == (9, 4, 1, 4)
    pool.reserve(a, a.num_tokens)  # again: the promise is made anew, not twice
    assert counts(pool, a) == (9, 4, 1, 4)


def test_growth_uses_up_the_promise_first() -> None:
    pool, a = CountingPool(10, 4), request("a", 12)
    pool.grow(a, 4)
    pool.reserve(a, a.num_tokens)
    pool.grow(a, 8)
    assert counts(pool, a) == (8, 1, 2, 1)
    pool.grow(a, 20)  # three more, one of them promised
    assert counts(pool, a) == (5, 0, 5, 0)


def test_a_promise_binds_admission_only() -> None:
    """The growth of one may use what another was promised."""
    pool, a, b = CountingPool(4, 4), request("a", 12), request("b", 12)
    pool.grow(a, 4)
    pool.reserve(a, a.num_tokens)
    assert pool.grow(b, 12)
    assert counts(pool, a, b) == (0, 2, 1, 2, 3, 0)


def test_need_counts_what_is_held() -> None:
    pool, a = CountingPool(10, 4), request("a", 20)
    assert pool.need(a, 20) == 5
    pool.grow(a, 8)
    assert pool.need(a, 20) == 3


# --- Giving back -----------------------------------------------------------------------------------------------------


def test_releasing_returns_blocks_and_promises() -> None:
    pool, a, b = CountingPool(10, 4), request("a", 20), request("b", 12)
    for each in (a, b):
        pool.grow(each, 8)
        pool.reserve(each, each.num_tokens)
    assert counts(pool, a, b) == (6, 4, 2, 3, 2, 1)
    assert pool.releasable(a) == 2
    assert pool.release(a) == 2
    assert counts(pool, a, b) == (8, 1, 0, 0, 2, 1)
    assert pool.release(a) == 0
    assert counts(pool, a, b) == (8, 1, 0, 0, 2, 1)


def test_held_adds_up() -> None:
    pool, a, b = CountingPool(10, 4), request("a", 20), request("b", 12)
    pool.grow(a, 8)
    pool.grow(b, 12)
    assert (pool.held([a]), pool.held([a, b]), pool.held([])) == (2, 5, 0)


def test_it_has_no_cache() -> None:
    pool, a = CountingPool(10, 4), request("a", 8)
    pool.grow(a, 8)
    a.num_computed = 8
    before = counts(pool, a)
    pool.commit(a)
    pool.forget(a, 0)
    pool.reset_cache()
    assert pool.match(request("b", a.tokens)) == 0
    pool.attach(request("b", a.tokens))
    assert counts(pool, a) == before


# --- Any sequence of calls -------------------------------------------------------------------------------------------

CALLS = st.lists(
    st.tuples(st.sampled_from(["grow", "reserve", "release"]), st.integers(0, 3), st.integers(0, 40)), max_size=40
)


@examples(100)
@given(num_blocks=st.integers(1, 12), block_size=st.integers(1, 5), calls=CALLS)
def test_blocks_and_promises_add_up(num_blocks: int, block_size: int, calls: list[tuple[str, int, int]]) -> None:
    pool = CountingPool(num_blocks, block_size)
    requests = [request(id, 40) for id in "abcd"]
    for call, who, tokens in calls:
        each = requests[who]
        before = counts(pool, *requests)
        held, reserved, free = each.num_blocks, each.reserved, pool.free
        missing = max(0, -(-tokens // block_size) - held)
        if call == "grow":
            assert pool.grow(each, tokens) == (missing <= free)
            if missing > free:
                assert counts(pool, *requests) == before
            else:
                assert (each.num_blocks, each.reserved) == (held + missing, max(0, reserved - missing))
        elif call == "reserve":
            pool.reserve(each, each.num_tokens)
            assert (each.num_blocks, each.reserved) == (held, -(-40 // block_size) - held)
        else:
            assert pool.release(each) == held
            assert (each.num_blocks, each.reserved) == (0, 0)
        assert pool.free + sum(r.num_blocks for r in requests) == num_blocks
        assert pool.promised == sum(r.reserved for r in requests)
        assert pool.free >= 0
        assert all(r.num_blocks >= 0 and r.reserved >= 0 for r in requests)
