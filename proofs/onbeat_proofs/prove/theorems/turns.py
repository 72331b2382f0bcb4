"""Theorems for all sizes about one turn of the step's loops.

The loops of a step are folds: over the running list, over the waiting list, and over victims until a request fits.
Each theorem runs the real method on one turn, from any numbers that the turns before it can have left, and shows that
a relation is kept. Then it holds after any number of turns, on lists of any length.

Blocks shared through the prefix cache are left out here; the bounded proofs and the tests cover them.
"""

from typing import Any

from onbeat_proofs.prove.sound import wrong_with
from onbeat_proofs.prove.states import Numbers, Shape, build
from onbeat_proofs.prove.theorem import PathVerdict, Theorem
from onbeat_reference.lifecycle import InFlight
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import Request
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import RequestRefused
from onbeat_spec.policy import Policy, is_decode, local_work
from onbeat_spec.records import Place, Step

RESTRICTIONS = (
    "counts of blocks without ids, block size 16",
    "first come, first served",
    "no cap, no drafts, no step in flight, no shared prefix",
    "blocks and promises of an undisturbed prefill",
)
"""What the states of these theorems leave out (`Shape`); the sweeps have shapes with each of these."""
POOL = ("counts of blocks without ids, block size 16",)
ONE = Shape(1)
FOUR = ("four running requests", *RESTRICTIONS)
TWO_WAITING = "for all values, two waiting requests"
OLD = frozenset({"pr44558", "local-work"})


def _flight(budget: int, held: bool = False) -> InFlight:
    flight = InFlight(Step(1, held, budget=budget))
    flight.step.hold = held
    return flight


class _OneTurn(Scheduler):
    """The real scheduler, for one turn of its running loop; what other turns decide is free.

    `_owed` is any number, `_make_room` any answer that keeps its contract: what the other theorems show of it.
    """

    room: bool
    owed: int
    over = False
    """It found no room even for the request itself: by then everybody behind it is gone, and the pass ends."""

    def _owed(self, behind: Any, now: int) -> int:
        return self.owed

    def _make_room(self, step: Step, request: Request, num_tokens: int) -> bool:
        self.over = not self.room
        return self.room


def _pair(numbers: Numbers, policy: Policy) -> list[tuple[_OneTurn, InFlight]]:
    """Two passes over one request, throttled and not, related as the turns before leave them.

    The throttled pass has at least the budget, and if `_make_room` lets the unthrottled one grow it lets the throttled
    one grow.
    """
    budget, extra = numbers.int("budget.u", 0), numbers.int("extra", 0)
    room_u = bool(numbers.bool("room.u"))
    room_t = room_u or bool(numbers.bool("room.t"))
    pair = []
    for room, left in ((room_t, budget + extra), (room_u, budget)):
        scheduler = build(numbers, ONE, policy)
        scheduler.__class__ = _OneTurn
        assert isinstance(scheduler, _OneTurn)
        scheduler.room, scheduler.owed = room, numbers.int("owed", 0)
        pair.append((scheduler, _flight(left)))
    return pair


def running_turn(numbers: Numbers, policy: Policy) -> PathVerdict:
    """From related passes, a decode gets at least as much throttled, and the passes stay related."""
    (throttled, held), (unthrottled, free) = _pair(numbers, policy)
    request = throttled.running[0]
    decode = is_decode(local_work(request))
    throttled._serve(held, tuple(throttled.running), True)
    unthrottled._serve(free, tuple(unthrottled.running), False)
    tokens, baseline = held.step.scheduled.get("r0", 0), free.step.scheduled.get("r0", 0)
    if decode and tokens < baseline:
        return PathVerdict(f"a decode gets {tokens} tokens, and {baseline} without the throttle", True)
    if not unthrottled.over and held.step.budget < free.step.budget:
        return PathVerdict("the throttled pass has less budget left", True)
    return PathVerdict(None, bool(held.step.held) or bool(held.step.scheduled))


def _victims(numbers: Numbers, policy: Policy, shape: Shape) -> tuple[Scheduler, Request, int]:
    scheduler = build(numbers, shape, policy)
    request = scheduler.running[0]
    return scheduler, request, request.num_computed + numbers.int("tokens", 1)


def eviction_turn(numbers: Numbers, policy: Policy) -> PathVerdict:
    """One turn of the victim loop keeps: throttled free blocks + those of the gap >= unthrottled free blocks.

    The gap are requests that the unthrottled pass has evicted and the throttled one has not: always the tail of the
    throttled list. Here r0 wants room, r1 still runs in both passes, r2 runs only in the throttled one; `beyond` are
    the blocks of the rest of the gap.
    """
    gap = bool(numbers.bool("gap"))
    throttled, request_t, end = _victims(numbers, policy, Shape(3, late=False))
    unthrottled, request_u, _ = _victims(numbers, policy, Shape(3, late=False))
    others = [r for r in throttled.running if r is not request_t]
    if not gap:  # the passes have the same list
        throttled.running.pop()
    unthrottled.running.pop()
    beyond = numbers.int("beyond", 0) if gap else 0
    width = beyond + others[1].num_blocks if gap else 0
    throttled.pool.free, unthrottled.pool.free = numbers.int("free.t", 0), numbers.int("free.u", 0)
    numbers.assume(throttled.pool.free + width >= unthrottled.pool.free)
    fits_t, fits_u = throttled.pool.grow(request_t, end), unthrottled.pool.grow(request_u, end)
    victim_t = victim_u = None
    if not fits_t and (gap or not fits_u):
        victim_t = throttled._evict_for(Step(1, True), request_t)
        width -= victim_t.num_blocks if victim_t.id == "r2" else 0
    if (not fits_u and victim_t is None) or (not fits_u and not gap):
        victim_u = unthrottled._evict_for(Step(1, False), request_u)
    verdict = _gap_kept(gap, (fits_t, fits_u), (victim_t, victim_u))
    return PathVerdict(verdict, victim_t is not None)


def _gap_kept(gap: bool, fits: tuple[bool, bool], victims: tuple[Request | None, Request | None]) -> str | None:
    """Say what is wrong after one turn of both passes, throttled first."""
    (fits_t, fits_u), (victim_t, victim_u) = fits, victims
    if fits_u and not fits_t and not gap:
        return "the unthrottled pass has room, and the throttled one has nobody left to evict"
    if victim_t is not None and gap and victim_t.id != "r2":
        return f"the throttled pass evicts {victim_t.id}, which still runs unthrottled"
    if victim_t is not None and not gap and (victim_u is None or victim_u.id != victim_t.id):
        return f"the throttled pass evicts {victim_t.id}, and the unthrottled one does not"
    return None


def gap_arithmetic(numbers: Numbers, policy: Policy) -> PathVerdict:
    """The counts of the victim loop, on the real pool: who evicts, and who grows, keeps the relation."""
    pools = [CountingPool(0, 16), CountingPool(0, 16)]
    rest = numbers.int("gap.rest", 0)
    last, request = Request("last", [0], 1), [Request("r", [0], 1), Request("r", [0], 1)]
    last.num_blocks = numbers.int("gap.last", 1)
    for r in request:
        r.num_blocks = numbers.int("held", 0)
    pools[0].free, pools[1].free = numbers.int("free.t", 0), numbers.int("free.u", 0)
    width = rest + last.num_blocks
    numbers.assume(pools[0].free + width >= pools[1].free)
    who = numbers.pick("who", ("throttled evicts", "unthrottled evicts", "both grow"))
    if who == "throttled evicts":
        pools[0].release(last)
        width = rest
    elif who == "unthrottled evicts":
        victim = Request("victim", [0], 1)
        victim.num_blocks = numbers.int("victim", 1)
        width += victim.num_blocks
        pools[1].release(victim)
    else:
        end = numbers.int("tokens", 1)
        grown = [pool.grow(r, end) for pool, r in zip(pools, request, strict=True)]
        numbers.assume(grown[0] and grown[1])
    kept = pools[0].free + width >= pools[1].free
    return PathVerdict(None if kept else "the throttled pass, with its gap, has fewer blocks", True)


def victim_is_behind(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A victim is never in front of the request it is evicted for, is unserved, gives blocks, and loses every count."""
    scheduler = build(numbers, Shape(4, late=False), policy)
    request = scheduler.running[numbers.pick("who", (0, 1, 2, 3))]
    front = scheduler.running[: scheduler.running.index(request)]
    step = Step(1, False)
    victim = scheduler._evict_for(step, request)
    if victim in front:
        return PathVerdict(f"{victim.id} is evicted for {request.id}, which comes after it", True)
    if victim is not request and step.evictions[0].released <= 0:
        return PathVerdict(f"{victim.id} is evicted and gives nothing", True)
    counts = (victim.num_computed, victim.num_placeholders, victim.num_drafts, victim.num_blocks, victim.reserved)
    if victim.place is not Place.WAITING or victim in scheduler.running or any(count != 0 for count in counts):
        return PathVerdict(f"{victim.id} is evicted and keeps {counts}", True)
    return PathVerdict(None, victim is not request)


def budget_turn(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A turn of either loop gives at least one token or none, out of what is left."""
    left = numbers.int("left", 0)
    flight = _flight(left)
    if numbers.pick("loop", ("running", "waiting")) == "running":
        scheduler = build(numbers, ONE, policy)
        scheduler._serve(flight, tuple(scheduler.running), False)
    else:
        scheduler = build(numbers, Shape(0, ("fresh|resume|offer",)), policy)
        scheduler._scan(flight, tuple(scheduler.waiting), False)
    granted = sum(flight.step.scheduled.values())
    if (
        flight.step.budget < 0
        or flight.step.budget + granted != left
        or any(n <= 0 for n in flight.step.scheduled.values())
    ):
        return PathVerdict(f"{granted} tokens were given of {left}, {flight.step.budget} are left", True)
    return PathVerdict(None, bool(flight.step.scheduled))


def _scanned(numbers: Numbers, policy: Policy, hold: bool, kinds: tuple[str, ...], only: int | None = None) -> InFlight:
    scheduler = build(numbers, Shape(0, kinds), policy)
    flight = _flight(numbers.int("left", 0), hold)
    waiting = tuple(scheduler.waiting) if only is None else (scheduler.waiting[only],)
    scheduler._scan(flight, waiting, hold)
    return flight


def held_ahead_changes_nothing(numbers: Numbers, policy: Policy, kind: str) -> PathVerdict:
    """Behind a held request, the scan does what it would have done had the held one not been there."""
    both = _scanned(numbers, policy, True, ("fresh", kind))
    alone = _scanned(numbers, policy, True, ("fresh", kind), only=1)
    if "w0" not in both.step.held:
        return PathVerdict(None, False)
    for field in ("scheduled", "loading", "admitted"):
        if getattr(both.step, field) != getattr(alone.step, field):
            return PathVerdict(
                f"{field} behind a held request: {getattr(both.step, field)}, alone {getattr(alone.step, field)}", True
            )
    return PathVerdict(None, bool(alone.step.scheduled) or bool(alone.step.loading))


def resume_behind_held(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A ready resume behind a held request."""
    return held_ahead_changes_nothing(numbers, policy, "resume")


def load_behind_held(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A remote load behind a held request."""
    return held_ahead_changes_nothing(numbers, policy, "offer")


def fresh_order(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Of two fresh prefills that may run, the younger is admitted only if the older was, held or not."""
    flight = _scanned(numbers, policy, bool(numbers.bool("hold")), ("fresh", "fresh"))
    scheduler = build(numbers, Shape(0, ("fresh", "fresh")), policy)
    older, younger = scheduler.waiting
    comparable = older.eligible_at <= 1 and not is_decode(older.num_tokens) and not is_decode(younger.num_tokens)
    if comparable and "w1" in flight.step.admitted and "w0" not in flight.step.admitted:
        return PathVerdict("the younger fresh prefill was admitted and the older was not", True)
    return PathVerdict(None, "w1" in flight.step.admitted)


def load_keeps_room(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A load that starts behind a fresh prefill that lacks only tokens leaves it its slot and its blocks."""
    scheduler = build(numbers, Shape(0, ("fresh", "offer"), drafts=2), policy)
    scheduler.pool.promised += numbers.int("others", 0)
    older, load = scheduler.waiting
    scheduler._scan(_flight(numbers.int("left", 0)), tuple(scheduler.waiting), False)
    if load.place is not Place.PARKED or older.eligible_at > 1:
        return PathVerdict(None, False)
    fits = older.place is Place.RUNNING or scheduler._has_room(older, scheduler._needs(older, False), 0, 0)
    return PathVerdict(None if fits else "the load took a slot or blocks that the older request needs", True)


def load_needs_no_tokens(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A load starts whatever is left of the budget, if slots and blocks are there for it and for all before it."""
    started = []
    for left in (numbers.int("left", 0), 1 << 40):
        scheduler = build(numbers, Shape(0, ("fresh", "offer"), late=False), policy)
        scheduler._scan(_flight(left), tuple(scheduler.waiting), False)
        started.append(scheduler.requests["w1"].place is Place.PARKED)
    verdict = None if started[0] or not started[1] else "the load starts with tokens left, and without does not"
    return PathVerdict(verdict, started[1])


def admission_keeps_promises(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Whoever is admitted or starts to load: all promises can be kept, it has one for all it knows, and a slot."""
    scheduler = build(numbers, Shape(0, ("fresh|resume|offer",)), policy)
    scheduler.pool.promised += numbers.int("others", 0)
    flight = _flight(numbers.int("left", 0))
    request = scheduler.waiting[0]
    scheduler._scan(flight, tuple(scheduler.waiting), False)
    if scheduler.num_slots > scheduler.config.max_num_seqs:
        return PathVerdict("more slots are held than there are", True)
    if request.place is Place.WAITING:
        return PathVerdict(None, False)
    pool = scheduler.pool
    if pool.promised > pool.free or (request.num_blocks + request.reserved) * pool.block_size < request.num_tokens:
        return PathVerdict(f"{pool.promised} blocks are promised and {pool.free} free", True)
    return PathVerdict(None, True)


def load_keeps_first_decode(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Whoever starts to load has blocks or a promise for its first decode step; when it is let in, it keeps them."""
    scheduler = build(numbers, Shape(0, ("resume|offer",), drafts=2), policy)
    scheduler.pool.promised += numbers.int("others", 0)
    pool, request = scheduler.pool, scheduler.waiting[0]
    had = request.num_blocks + request.reserved
    scheduler._scan(_flight(numbers.int("left", 0)), tuple(scheduler.waiting), False)
    if request.place is Place.WAITING:
        return PathVerdict(None, False)
    has = request.num_blocks + request.reserved
    if request.place is Place.RUNNING:
        return PathVerdict(
            None if has == had else f"it loaded with {had} blocks or promises, and runs with {has}", True
        )
    room, first_decode = has * pool.block_size, request.num_tokens + 1 + scheduler.config.num_draft_tokens
    if pool.promised > pool.free or (room < first_decode and room < request.limit - 1):
        return PathVerdict(f"it loads with room for {room} tokens, and first decodes with {first_decode}", True)
    return PathVerdict(None, True)


def alone_is_let_in(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A request that is alone, and may run, is let in, or its load starts: what was accepted fits."""
    scheduler = build(numbers, Shape(0, ("fresh|resume|offer",), drafts=2), policy)
    request = scheduler.waiting[0]
    scheduler._scan(_flight(numbers.int("left", 1)), tuple(scheduler.waiting), False)
    if request.eligible_at > 1:
        return PathVerdict(None, False)
    return PathVerdict("it is alone and not let in" if request.place is Place.WAITING else None, True)


def pool_turn(numbers: Numbers, policy: Policy) -> PathVerdict:
    """Every operation of the pool keeps free + held; one that fails changes nothing."""
    pool, request = CountingPool(0, 16), Request("r", [0], 1)
    pool.free, pool.promised = numbers.int("free", 0), numbers.int("promised", 0)
    request.num_blocks, request.reserved = numbers.int("held", 0), numbers.int("reserved", 0)
    request.num_tokens = numbers.int("known", 1)
    numbers.assume(request.reserved <= pool.promised)
    before = (pool.free, pool.promised, request.num_blocks, request.reserved)
    what = numbers.pick("what", ("grow", "reserve", "release"))
    grew = True
    if what == "grow":
        grew = pool.grow(request, numbers.int("tokens", 1))
    elif what == "reserve":
        pool.reserve(request, numbers.int("tokens", 1))
    else:
        pool.release(request)
    after = (pool.free, pool.promised, request.num_blocks, request.reserved)
    if after[0] + after[2] != before[0] + before[2] or after[1] - after[3] != before[1] - before[3] or after[0] < 0:
        return PathVerdict(f"{what} turns (free, promised, held, reserved) {before} into {after}", True)
    if not grew and after != before:
        return PathVerdict(f"a failed {what} turns {before} into {after}", True)
    return PathVerdict(None, what != "grow" or not grew)


def never_fits(numbers: Numbers, policy: Policy) -> PathVerdict:
    """A request is accepted exactly if its prompt and one token have room in pool and model."""
    size, blocks = 16, numbers.int("num_blocks", 1)
    config = Config(
        policy=policy.name, num_blocks=blocks, block_size=size, max_model_len=numbers.int("max_model_len", 1)
    )
    scheduler = Scheduler(config, policy, CountingPool(blocks, size))
    request = Request("r", [0], 1)
    request.num_prompt = request.num_tokens = numbers.int("prompt", 1)
    request.limit = request.num_prompt + numbers.int("max_tokens", 1)
    fits = request.num_prompt <= blocks * size and request.num_prompt < config.max_model_len
    try:
        scheduler.add_request(request)
    except RequestRefused:
        return PathVerdict("it fits and was refused" if fits or scheduler.requests else None, True)
    grown = request.limit - 1 <= blocks * size and request.limit <= config.max_model_len
    if wrong := wrong_with(request, size, 0):
        return PathVerdict(f"it was accepted, and {wrong}", True)
    return PathVerdict(None if fits and grown else "it can never fit and was accepted", True)


THEOREMS = (
    Theorem(
        "decode-never-held/running-turn",
        "A turn of the running loop favours a decode under the throttle.",
        running_turn,
    ),
    Theorem(
        "decode-never-held/eviction-turn", "The throttled pass evicts only whom the unthrottled evicts.", eviction_turn
    ),
    Theorem("decode-never-held/gap", "Its free blocks, with those of the gap, are no fewer.", gap_arithmetic),
    Theorem(
        "throttle-never-evicts/eviction-turn",
        "The throttled pass evicts only whom the unthrottled evicts.",
        eviction_turn,
    ),
    Theorem(
        "victim-can-pay/victim",
        "A victim other than the request itself gives blocks.",
        victim_is_behind,
        restrictions=FOUR,
    ),
    Theorem(
        "evicted-is-out/victim", "A victim is unserved, and loses every count.", victim_is_behind, restrictions=FOUR
    ),
    Theorem(
        "oldest-finishes/victim",
        "A victim is never in front of the request it is evicted for.",
        victim_is_behind,
        restrictions=FOUR,
    ),
    Theorem("budget/turn", "A turn of either loop gives tokens out of what is left.", budget_turn),
    Theorem(
        "resume-bypasses/behind-held",
        "A resume behind a held request is treated as if alone.",
        resume_behind_held,
        refuted_under=OLD,
    ),
    Theorem(
        "resume-bypasses/load-behind-held",
        "A remote load behind a held request starts as if alone.",
        load_behind_held,
        refuted_under=OLD,
    ),
    Theorem(
        "order-kept/turn",
        "Of two fresh prefills the younger is never admitted alone.",
        fresh_order,
        restrictions=("the two are adjacent", *RESTRICTIONS),
    ),
    Theorem(
        "order-kept/load-turn",
        "A load leaves room for an older request that lacks tokens.",
        load_keeps_room,
        TWO_WAITING,
    ),
    Theorem(
        "progress/load-turn",
        "A load starts with any budget, if all before it have room.",
        load_needs_no_tokens,
        TWO_WAITING,
        refuted_under=OLD,
    ),
    Theorem("full-sequence-fits/turn", "After an admission all promises can be kept.", admission_keeps_promises),
    Theorem(
        "full-sequence-fits/load-turn",
        "Who loads has room for its first decode step, drafts included.",
        load_keeps_first_decode,
    ),
    Theorem("slots/turn", "An admission takes a slot that is there.", admission_keeps_promises),
    Theorem(
        "blocks-conserved/turn",
        "Every operation of the pool keeps free + held.",
        pool_turn,
        about="operation",
        restrictions=POOL,
    ),
    Theorem(
        "all-or-nothing/turn", "A failed allocation changes nothing.", pool_turn, about="operation", restrictions=POOL
    ),
    Theorem(
        "never-fits-refused/submit",
        "A request is accepted exactly if it can fit.",
        never_fits,
        about="operation",
        restrictions=POOL,
    ),
    Theorem("never-fits-refused/alone", "A request that was accepted is let in when it is alone.", alone_is_let_in),
)
