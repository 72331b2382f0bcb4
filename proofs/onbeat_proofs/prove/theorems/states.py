"""The assumptions of every start state, for all sizes: each operation on one request keeps them.

What holds of a request alone is `sound.wrong_with`. What holds of all together is that promises are covered
(`full-sequence-fits` over one state). That alone is not inductive: a request that ends takes its growth with it, and
with a shared prefix its blocks may stay. The proof needs a count that no scheduler keeps, what a request has *grown*
by since the latest admission of anybody: blocks taken beyond its promise. It is part of what it holds alone, since
nobody can have come to share it without an admission; and an admission asks that all promises be covered by free
blocks, so that it sets every such count to 0. The claim that is kept: promised <= free + what all have grown by.

Everybody else is two numbers here, promises and growth; so the claim is for any number of requests. How many of the
request's blocks others hold too is any number.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onbeat_proofs.prove.sound import wrong_with
from onbeat_proofs.prove.states import Numbers
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_reference.lifecycle import InFlight
from onbeat_reference.observe import observe
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import Request
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.invariants.memory import outgrown
from onbeat_spec.policy import Policy
from onbeat_spec.records import Place, Step, View, view

RESTRICTIONS = (
    "counts of blocks without ids, block sizes 1 and 16",
    "an output of at most 3 tokens",
    "of a request that was preempted, outputs of one step",
)
SIZES = (1, 16)
MOST_TOKENS = 3
"""Most tokens that an output brings in these proofs."""


class AnySharing(CountingPool):
    """The pool's counts when blocks may be shared: of one request's blocks, any number is held by others too.

    It has the contract of `BlockPool`: a hit that somebody holds costs nothing, one that nobody holds is taken from
    `free`, and what a request gives up returns as far as nobody else holds it.
    """

    alone = 0
    """Blocks of the request that nobody else holds."""
    hits_held = 0
    hits_idle = 0

    def match(self, request: Request) -> int:
        return (self.hits_held + self.hits_idle) * self.block_size

    def need(self, request: Request, num_tokens: int) -> int:
        return super().need(request, num_tokens) - (self.hits_held if request.num_blocks == 0 else 0)

    def attach(self, request: Request) -> None:
        if request.num_blocks == 0:
            self.free -= self.hits_idle
            self.alone = self.hits_idle
            request.num_blocks += self.hits_held + self.hits_idle

    def releasable(self, request: Request) -> int:
        return self.alone

    def _take(self, request: Request, new: int) -> None:
        self.alone += new

    def _give(self, request: Request) -> int:
        released, self.alone = self.alone, 0
        return released


@dataclass(slots=True)
class _World:
    """A scheduler with one request, and what the proof knows of everybody."""

    scheduler: Scheduler
    request: Request
    pool: AnySharing
    grown: int
    """Blocks that the request took beyond its promise since the latest admission."""
    others: int
    """What all others have grown by."""
    promised_to_others: int


Operation = Callable[[Numbers, _World], None]


def _world(numbers: Numbers, policy: Policy, place: Place, holds: bool) -> _World:
    """Any request in a place, in any state that the claim allows."""
    size = numbers.pick("block_size", SIZES)
    config = Config(
        policy=policy.name,
        block_size=size,
        num_blocks=1,
        num_draft_tokens=numbers.int("draft_tokens", 0),
        async_depth=2,
        max_num_batched_tokens=numbers.int("budget", 1),
        max_num_seqs=numbers.int("slots", 1),
    )
    pool = AnySharing(1, size)
    scheduler = Scheduler(config, policy, pool)
    request = Request("r", [0], 1)
    request.place = place
    request.num_prompt, request.num_tokens = numbers.int("prompt", 1), numbers.int("tokens", 1)
    request.limit = numbers.int("limit", 1)
    if holds:
        request.num_blocks, request.reserved = numbers.int("blocks", 1), numbers.int("reserved", 0)
        request.num_computed = numbers.int("computed", 0) if place is not Place.PARKED else 0
        request.external = numbers.int("external", 0)
        pool.alone = numbers.int("alone", 0)
        numbers.assume(pool.alone <= request.num_blocks)
    if place is Place.RUNNING:
        request.num_placeholders = numbers.int("placeholders", 0)
        request.num_drafts = numbers.int("drafts", 0)
        numbers.assume(request.num_drafts <= config.num_draft_tokens)
    elif not holds:
        request.remote_tokens = numbers.int("remote", 0)
        request.sync_load = numbers.pick("mode", (False, True))
        numbers.assume(request.remote_tokens <= request.num_prompt)
    numbers.assume(wrong_with(request, size, config.num_draft_tokens) is None)
    {Place.RUNNING: scheduler.running, Place.WAITING: scheduler.waiting, Place.PARKED: scheduler.parked}[place].append(
        request
    )
    scheduler.requests = {"r": request}
    if place is Place.WAITING:
        scheduler._count(request, 1)
    world = _World(
        scheduler,
        request,
        pool,
        numbers.int("grown", 0) if holds else 0,
        numbers.int("others.grown", 0),
        numbers.int("others.promised", 0),
    )
    numbers.assume(world.grown <= pool.alone)
    numbers.assume(world.grown <= outgrown(config, observe(scheduler)))
    pool.free, pool.promised = numbers.int("free", 0), request.reserved + world.promised_to_others
    numbers.assume(pool.promised <= pool.free + world.grown + world.others)
    return world


def _wrong(world: _World) -> str | None:
    """What the claim says is not so."""
    request, pool, config = world.request, world.pool, world.scheduler.config
    if pool.promised != request.reserved + world.promised_to_others:
        return f"{pool.promised} blocks count as promised, and {request.reserved} and {world.promised_to_others} are"
    if pool.promised > pool.free + world.grown + world.others:
        return f"{pool.promised} blocks are promised, {pool.free} free, grown by {world.grown} and {world.others}"
    if pool.free < 0 or world.grown < 0 or world.grown > pool.alone:
        return f"grown by {world.grown}, of which {pool.alone} are its own; {pool.free} are free"
    if world.grown > outgrown(config, observe(world.scheduler)):
        return f"grown by {world.grown}, and the invariant counts {outgrown(config, observe(world.scheduler))}"
    if request.place is Place.FINISHED:
        return None
    return wrong_with(request, config.block_size, config.num_draft_tokens)


def _kept(place: Place, holds: bool, operation: Operation) -> Callable[[Numbers, Policy], PathVerdict]:
    """A theorem's function: from any state, the real operation, and the claim again."""

    def run(numbers: Numbers, policy: Policy) -> PathVerdict:
        world = _world(numbers, policy, place, holds)
        request = world.request
        before = view(request)
        operation(numbers, world)
        if before.place is Place.WAITING and request.place in (Place.RUNNING, Place.PARKED):
            world.grown = world.others = 0
        elif request.num_blocks > 0:
            world.grown += request.num_blocks + request.reserved - before.num_blocks - before.reserved
        else:
            world.grown = 0
        return PathVerdict(_wrong(world), _changed(before, request))

    return run


def _changed(before: View, request: Request) -> bool:
    """Whether the operation did anything to the request."""
    if before.place is not request.place or before.num_tokens != request.num_tokens:
        return True
    return bool(before.num_blocks != request.num_blocks or before.num_computed != request.num_computed)


# --- The operations --------------------------------------------------------------------------------------------------


def _flight(numbers: Numbers, world: _World) -> InFlight:
    return InFlight(Step(1, False, budget=numbers.int("left", 0)))


def serve(numbers: Numbers, world: _World) -> None:
    """Its turn in the running list, drafts included; without room it is its own victim."""
    flight = _flight(numbers, world)
    world.scheduler._serve(flight, tuple(world.scheduler.running), bool(numbers.bool("hold")))
    world.scheduler._serve_drafts(flight)


def scan(numbers: Numbers, world: _World) -> None:
    """Its turn in the waiting list."""
    pool, request = world.pool, world.request
    if request.num_blocks == 0:
        pool.hits_held, pool.hits_idle = numbers.int("hits.held", 0), numbers.int("hits.idle", 0)
        numbers.assume(pool.match(request) < request.num_tokens)
        numbers.assume(pool.hits_idle <= pool.free)
    world.scheduler._scan(_flight(numbers, world), tuple(world.scheduler.waiting), bool(numbers.bool("hold")))


def output(numbers: Numbers, world: _World) -> None:
    """The outputs of the oldest step come: some tokens, of as many and more that were booked for it."""
    request, scheduler = world.request, world.scheduler
    step, booked = Step(0, False), numbers.int("booked", 0)
    numbers.assume(request.num_placeholders >= 1 + booked)
    numbers.assume(request.num_computed >= booked)
    tokens = [7] * numbers.pick("tokens.delivered", tuple(range(1, MOST_TOKENS + 1)))
    numbers.assume(len(tokens) <= 1 + booked)
    step.drafts["r"] = booked
    request.stop_token_ids = frozenset(numbers.pick("stops", ((), (7,))))
    scheduler.in_flight.append(InFlight(step, [request]))
    scheduler.update(step, {"r": tokens}, {"r": numbers.int("proposed", 0)})


def late_output(numbers: Numbers, world: _World) -> None:
    """Outputs come of a step that it was preempted after; if it runs again, then in the one step that is ahead."""
    request, scheduler = world.request, world.scheduler
    numbers.assume(request.num_placeholders <= 1)
    numbers.assume(request.num_drafts <= 0)
    flight = InFlight(Step(0, False), [request], preempted={request})
    request.stop_token_ids = frozenset(numbers.pick("stops", ((), (7,))))
    scheduler.in_flight.append(flight)
    scheduler.update(flight.step, {"r": [7] * numbers.pick("tokens.delivered", tuple(range(1, MOST_TOKENS + 1)))})


def preempt(numbers: Numbers, world: _World) -> None:
    """It is somebody's victim, or the prefix cache is reset."""
    world.scheduler._preempt(world.request)


def abort(numbers: Numbers, world: _World) -> None:
    """Its client goes away; if it was loading, then the load ends."""
    loading = world.request.place is Place.PARKED
    world.scheduler.abort(world.request)
    if loading and numbers.pick("ends", (True, False)):
        world.scheduler.load_failed(world.request)


def land(numbers: Numbers, world: _World) -> None:
    """Its load ends: whole, from some block on not, or at its deadline."""
    how = numbers.pick("how", ("lands", "fails", "expires"))
    if how == "lands":
        world.scheduler.load_finished(world.request)
    elif how == "fails":
        world.scheduler.load_failed(world.request, numbers.int("from_block", 0))
    else:
        world.request.load_deadline = 1
        world.scheduler._expire_loads(Step(1, False))


def fail_within_step(numbers: Numbers, world: _World) -> None:
    """A load within a step that is in flight fails from some block on."""
    flight = InFlight(Step(0, False))
    flight.loads[world.request] = numbers.int("loaded", 1)
    numbers.assume(flight.loads[world.request] <= world.request.num_tokens)
    numbers.assume(flight.loads[world.request] <= world.request.num_blocks * world.pool.block_size)
    world.scheduler.in_flight.append(flight)
    world.scheduler.load_failed(world.request, numbers.int("from_block", 0))


RUNNING, WAITING, PARKED = Place.RUNNING, Place.WAITING, Place.PARKED
_OPERATIONS: tuple[tuple[str, str, Callable[[Numbers, Policy], PathVerdict]], ...] = (
    ("serve", "a turn of the running list", _kept(RUNNING, True, serve)),
    ("admit", "a turn of the waiting list", _kept(WAITING, False, scan)),
    ("resume", "a turn of the waiting list, for one that holds blocks", _kept(WAITING, True, scan)),
    ("output", "an output", _kept(RUNNING, True, output)),
    ("late-output", "an output of a step before its preemption", _kept(WAITING, False, late_output)),
    ("late-output-running", "the same, if it runs again", _kept(RUNNING, True, late_output)),
    ("preempt", "a preemption", _kept(RUNNING, True, preempt)),
    ("land", "the end of a load", _kept(PARKED, True, land)),
    ("fail-within-step", "the failure of a load within a step", _kept(RUNNING, True, fail_within_step)),
    ("abort-running", "an abort of a running request", _kept(RUNNING, True, abort)),
    ("abort-waiting", "an abort of one that waits with blocks", _kept(WAITING, True, abort)),
    ("abort-loading", "an abort of one that loads", _kept(PARKED, True, abort)),
)

THEOREMS = tuple(
    Theorem(f"full-sequence-fits/{name}", f"What every start state assumes is kept by {what}.", run)
    for name, what, run in _OPERATIONS
)
