"""Small means of the tests that run a scheduler: requests, fake outputs, and the state as one value."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, settings

from onbeat_reference import BlockPool, Outputs, Request, Scheduler
from onbeat_reference.lifecycle import Lifecycle
from onbeat_reference.observe import observe
from onbeat_spec.config import Config
from onbeat_spec.errors import ProtocolMisuse, RequestRefused
from onbeat_spec.records import Step


def examples(count: int) -> settings:
    """So many random examples, the same in every run, however long they take."""
    return settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def request(
    id: str,
    prompt: int | Sequence[int],
    max_tokens: int = 16,
    *,
    priority: int = 0,
    stop: Collection[int] = (),
    remote: int = 0,
    mode: Literal["async", "sync"] = "async",
    salt: str = "",
) -> Request:
    """A request; a prompt that is a number is so many tokens of no other request."""
    if isinstance(prompt, int):
        prompt = text(id, prompt)
    return Request(
        id,
        prompt,
        max_tokens,
        priority=priority,
        stop_token_ids=stop,
        remote_tokens=remote,
        remote_mode=mode,
        cache_salt=salt,
    )


def text(name: str, count: int) -> list[int]:
    """The first tokens of the text of that name; texts of different names have no token in common."""
    start = int.from_bytes(name.encode()[:4].ljust(4), "big") * 1000
    return list(range(start, start + count))


def scheduler(*requests: Request, **config: Any) -> Scheduler:
    """A scheduler with blocks of 4 tokens, and with these requests."""
    made = Scheduler(Config(**{"block_size": 4, "num_blocks": 100, **config}))
    for each in requests:
        made.add_request(each)
    return made


def land(
    scheduler: Lifecycle,
    *,
    token: int = 1,
    accept: Mapping[str, int] | None = None,
    drafts: Mapping[str, int] | None = None,
) -> Outputs:
    """The outputs of the oldest step in flight come back: `token` for everybody who sampled.

    Args:
        token: what is sampled.
        accept: draft tokens that were right, for each request; 0 for those not named.
        drafts: draft tokens proposed for the next step.
    """
    flight = scheduler.in_flight[0]
    sampled = {r.id: [token] * (1 + (accept or {}).get(r.id, 0)) for r in flight.sampling}
    return scheduler.update(flight.step, sampled, drafts)


def turn(scheduler: Scheduler, throttle: bool = False, **outputs: Any) -> Step:
    """One step whose outputs come back at once."""
    step = scheduler.schedule(throttle)
    land(scheduler, **outputs)
    return step


def turns(scheduler: Scheduler, count: int, **outputs: Any) -> list[dict[str, int]]:
    """What so many steps scheduled."""
    return [turn(scheduler, **outputs).scheduled for _ in range(count)]


def ids(requests: Iterable[Request]) -> list[str]:
    return [each.id for each in requests]


def photo(scheduler: Lifecycle) -> object:
    """Everything about a scheduler that a call could change, as a value to compare."""
    known = [*scheduler.running, *scheduler.waiting, *scheduler.parked, *scheduler.orphans]
    slots = {name for kind in Request.__mro__ for name in getattr(kind, "__slots__", ())}
    pool = scheduler.pool
    assert isinstance(pool, BlockPool)
    return (
        observe(scheduler),
        [{name: _copy(getattr(each, name)) for name in slots} for each in known],
        list(scheduler.requests),
        (scheduler.paused, scheduler.saturated, scheduler.held_steps, scheduler.num_steps),
        [
            (flight.step, _copy(flight.sampling), _copy(flight.prefilled), set(flight.preempted))
            for flight in scheduler.in_flight
        ],
        (pool.free, pool.promised, list(pool.refs), list(pool._blank), list(pool._idle), dict(pool._by_hash)),
    )


def _copy(value: object) -> object:
    return list(value) if isinstance(value, list) else value


def conserved(pool: BlockPool, owners: Iterable[Request]) -> None:
    """Every block is with its holders or free, findable only with its hash, and all sums agree."""
    owners = list(owners)
    tables = [each.blocks for each in owners]
    blank, idle = list(pool._blank), list(pool._idle)
    held = {block for table in tables for block in table}
    assert all(len(set(table)) == len(table) for table in tables)
    assert sorted([*blank, *idle, *held]) == list(range(pool.num_blocks))  # nobody's twice, nobody's not at all
    assert pool.refs == [sum(block in table for table in tables) for block in range(pool.num_blocks)]
    assert pool.free == len(blank) + len(idle)
    assert pool.held(owners) == len(held)
    assert [each.num_blocks for each in owners] == [len(table) for table in tables]
    assert pool.promised == sum(each.reserved for each in owners)
    assert all(each.reserved >= 0 for each in owners)
    assert {block: key for key, block in pool._by_hash.items()} == pool._hash_of
    assert set(idle) <= set(pool._hash_of)
    assert not set(blank) & set(pool._hash_of)


def unconfirmed(scheduler: Scheduler, request: Request) -> bool:
    """Whether the outcome of a load within the step that admitted the request is not known yet."""
    return any(request in flight.loads for flight in scheduler.in_flight)


def refusal(made: Scheduler, asked: Request) -> str:
    """Why a request is refused; nothing of it may be kept."""
    before = photo(made)
    with pytest.raises(RequestRefused) as refused:
        made.add_request(asked)
    assert photo(made) == before
    return str(refused.value)


def misuse(made: Scheduler, *arguments: Any) -> str:
    """Why an update is refused; nothing may have changed."""
    before = photo(made)
    with pytest.raises(ProtocolMisuse) as refused:
        made.update(*arguments)
    assert photo(made) == before
    return str(refused.value)


def owners(made: Scheduler) -> list[Request]:
    return [*made.running, *made.waiting, *made.parked, *made.orphans]


def at_rest(made: Scheduler) -> bool:
    """Nobody is there, and every block is back."""
    pool = made.pool
    assert isinstance(pool, BlockPool)
    conserved(pool, owners(made))
    return not made.has_unfinished_requests() and (pool.free, pool.promised) == (pool.num_blocks, 0)


def parked(prompt: int = 12, remote: int = 8, **config: Any) -> tuple[Scheduler, Request]:
    """A scheduler that loads for one request."""
    r = request("r", prompt, remote=remote)
    made = scheduler(r, **config)
    step = turn(made)
    assert (step.loading, step.scheduled, step.admitted) == (["r"], {}, [])
    return made, r
