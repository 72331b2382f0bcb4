"""States of a scheduler whose every number is free: what the proofs start from.

The scheduler is the real class over the real counting pool; only the numbers in it are symbolic. Given a `Fixed`
context it builds the same state from plain ints, which is how a Z3 model is run in ordinary Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

from onbeat_proofs.prove.sound import wrong_with
from onbeat_reference.lifecycle import InFlight
from onbeat_reference.observe import observe
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import Request
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import NotReproduced
from onbeat_spec.invariants.memory import promises_are_covered
from onbeat_spec.policy import Policy, is_decode, local_work
from onbeat_spec.records import Facts, Place, Step

T = TypeVar("T")


class Numbers(Protocol):
    """Where a state's numbers come from: a symbolic run's context, or a model."""

    def int(self, name: str, low: Any = None, high: Any = None) -> Any: ...
    def bool(self, name: str) -> Any: ...
    def pick(self, name: str, options: Sequence[T]) -> T: ...
    def assume(self, condition: Any) -> None: ...


class Fixed:
    """Numbers from a model.

    Raises (from `assume`):
        NotReproduced: the model breaks an assumption.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def int(self, name: str, low: Any = None, high: Any = None) -> Any:
        return self.values.get(name, low if low is not None else 0)

    def bool(self, name: str) -> Any:
        return self.values.get(name, False)

    def pick(self, name: str, options: Sequence[T]) -> T:
        picked: T = self.values.get(name, options[0])
        return picked

    def assume(self, condition: Any) -> None:
        if not condition:
            raise NotReproduced("the model breaks one of the state's own assumptions; this is an error of the prover")


@dataclass(frozen=True, slots=True)
class Shape:
    """How many requests a state has, of which kinds; all their numbers are free.

    Attributes:
        running: running requests; each may be a decode or a chunk.
        waiting: kinds of waiting requests, in order: `fresh`, `resume` (its remote load has landed), `offer` (a
            remote store offers KV for it), or several of these with `|`.
        older: how many of the waiting requests are older than those that run.
        loading: requests whose remote load is in flight.
        late: each request may also be barred from this step.
        drafts: most draft tokens of a decode.
        cap: the cap on prefill tokens of one request is free, instead of absent.
        spare: a request may hold blocks beyond what is computed of it.
        loaded: each running request may have loaded, and be promised blocks for its first decode step.
        shared: all running requests, and the first waiting one, share a prompt prefix in the prefix cache.
    """

    running: int
    waiting: tuple[str, ...] = ()
    scheduling: str = "fcfs"
    older: int = 0
    loading: int = 0
    late: bool = True
    drafts: int = 0
    cap: bool = False
    shared: bool = False
    spare: bool = False
    loaded: bool = False
    async_depth: int = 1
    block_size: int = 16

    def __str__(self) -> str:
        words = [f"{self.running}+{len(self.waiting)}"]
        if self.waiting and set(self.waiting) != {"fresh|resume"}:
            words.append(",".join(self.waiting))
        words += [f"{self.older} older"] if self.older else []
        words += [f"{self.loading} loading"] if self.loading else []
        words += ["priority"] if self.scheduling == "priority" else []
        words += ["drafts"] if self.drafts else []
        words += ["cap"] if self.cap else []
        words += ["spare blocks"] if self.spare else []
        words += ["loaded"] if self.loaded else []
        words += ["shared prefix"] if self.shared else []
        words += ["in flight"] if self.async_depth > 1 else []
        words += [f"block {self.block_size}"] if self.block_size != 16 else []
        return " ".join(words)


class Built:
    """How many start states were built: who builds one rests on what `build` assumes."""

    count = 0


class SharingPool(CountingPool):
    """A counting pool in which some requests share their first `shared` blocks through the prefix cache.

    The prefix cache reduced to its effect on counts: a shared block comes back with its last holder.
    """

    shared: int = 0

    def __init__(self, num_blocks: int, block_size: int, finds: Sequence[str] = ()) -> None:
        super().__init__(num_blocks, block_size)
        self.sharers: set[str] = set()
        self.finds = frozenset(finds)

    def match(self, request: Request) -> int:
        """The shared prefix is there for whoever may find it, as long as somebody holds it."""
        if request.id not in self.finds or not self.sharers:
            return 0
        cached = self.shared * self.block_size
        return cached if cached < request.num_tokens else 0

    def need(self, request: Request, num_tokens: int) -> int:
        """Shared blocks are there already."""
        hits = self.match(request) // self.block_size if request.num_blocks == 0 else 0
        return super().need(request, num_tokens) - hits

    def attach(self, request: Request) -> None:
        """Take part in the shared blocks."""
        if request.num_blocks == 0 and self.match(request) > 0:
            request.num_blocks += self.shared
            self.sharers.add(request.id)

    def held(self, owners: Any) -> int:
        """Count shared blocks once."""
        owners = list(owners)
        sharers = sum(1 for request in owners if request.id in self.sharers and request.num_blocks > 0)
        return super().held(owners) - self.shared * (sharers - 1 if sharers > 0 else 0)

    def releasable(self, request: Request) -> int:
        """What nobody else holds."""
        others = self.sharers - {request.id}
        return request.num_blocks - (self.shared if request.id in self.sharers and others else 0)

    def _give(self, request: Request) -> int:
        released = self.releasable(request)
        self.sharers.discard(request.id)
        return released


def build(numbers: Numbers, shape: Shape, policy: Policy) -> Scheduler:
    """Build a scheduler in any state of this shape that steps can lead to (and some that none can).

    Built twice from one context, it gives two schedulers in the same state.
    """
    Built.count += 1
    size = shape.block_size
    budget = numbers.int("budget", 1)
    slots = numbers.int("slots", 1)
    free = numbers.int("free", 0)
    config = Config(
        policy=policy.name,
        scheduling=shape.scheduling,  # type: ignore[arg-type]  # one of the two words, from our own shapes
        block_size=size,
        num_blocks=1,
        max_num_batched_tokens=budget,
        enable_prefix_caching=shape.shared,
        max_num_seqs=slots,
        long_prefill_token_threshold=numbers.int("cap", 1) if shape.cap else 0,
        num_draft_tokens=shape.drafts,
        async_depth=shape.async_depth,  # type: ignore[arg-type]  # 1 or 2, from our own shapes
        max_hold_steps=numbers.int("max_hold_steps", 1),
    )
    finds = [f"w{i}" for i in range(len(shape.waiting))][:1]
    pool: CountingPool = SharingPool(1, size, finds) if shape.shared else CountingPool(1, size)
    scheduler = Scheduler(config, policy, pool)
    scheduler.num_steps = 1
    scheduler.held_steps = numbers.int("held_steps", 0)
    scheduler.saturated = numbers.bool("saturated")
    for i in range(shape.running):
        scheduler.running.append(_running(numbers, shape, f"r{i}", 10 + i))
    for i, kinds in enumerate(shape.waiting):
        age = i if i < shape.older else 20 + i
        scheduler.waiting.append(_waiting(numbers, shape, f"w{i}", age, numbers.pick(f"w{i}.kind", kinds.split("|"))))
    for i in range(shape.loading):
        scheduler.parked.append(_loading(numbers, shape, f"l{i}", 30 + i))
    live = [*scheduler.running, *scheduler.waiting, *scheduler.parked]
    scheduler.requests = {request.id: request for request in live}
    for request in scheduler.waiting:
        scheduler._count(request, 1)
    if shape.scheduling == "priority":
        _rank(numbers, scheduler.running)
        _rank(numbers, scheduler.waiting)
    if shape.shared:
        _share(numbers, pool, scheduler.running)
    if shape.async_depth > 1:
        sampling = [request for request in scheduler.running if request.num_placeholders > 0]
        scheduler.in_flight.append(InFlight(Step(0, False), sampling))
    pool.free = free
    pool.promised = sum(request.reserved for request in live)
    total = free + pool.held(live)
    pool.num_blocks = total
    object.__setattr__(config, "num_blocks", total)  # the pool is as large as what is free and what is held
    for request in live:
        numbers.assume(wrong_with(request, size, shape.drafts) is None)
        numbers.assume(request.limit <= total * size + 1)  # never-fits-refused
    numbers.assume(scheduler.num_slots <= slots)
    numbers.assume(promises_are_covered(config, observe(scheduler)) is None)
    return scheduler


def _request(numbers: Numbers, shape: Shape, id: str, arrival: int) -> Request:
    request = Request(id, [0], 1)
    request.arrival = arrival
    request.num_tokens = _tokens(numbers, f"{id}.tokens", shape)
    request.num_prompt = 1
    request.limit = request.num_tokens + numbers.int(f"{id}.to_go", 1)
    request.eligible_at = numbers.pick(f"{id}.late", (0, 9)) if shape.late else 0
    return request


def _running(numbers: Numbers, shape: Shape, id: str, arrival: int) -> Request:
    """A running request; where the shape says so, one that keeps a promise for the first decode step after its load."""
    request = _request(numbers, shape, id, arrival)
    request.place = Place.RUNNING
    request.num_placeholders = numbers.pick(f"{id}.placeholders", (0, 1)) if shape.async_depth > 1 else 0
    if request.num_placeholders > 0:
        request.num_computed = request.num_tokens
    else:
        request.num_computed = _tokens(numbers, f"{id}.computed", shape, low=0 if shape.spare else 1)
        numbers.assume(request.num_computed < request.num_tokens)
    decode = is_decode(local_work(request))
    _take_blocks(numbers, shape, request, request.num_computed, decode=decode, loads=shape.loaded)
    if shape.drafts and decode:
        request.num_drafts = numbers.int(f"{id}.drafts", 0, shape.drafts)
    return request


def _waiting(numbers: Numbers, shape: Shape, id: str, arrival: int, kind: str) -> Request:
    request = _request(numbers, shape, id, arrival)
    if kind == "resume":
        request.external = _tokens(numbers, f"{id}.external", shape, low=0 if shape.spare else 1)
        numbers.assume(request.external <= request.num_tokens)
        _take_blocks(numbers, shape, request, request.external, decode=False, loads=True)
        all_loaded = request.external >= request.num_tokens
        request.num_computed = request.num_tokens - 1 if all_loaded else request.external
    elif kind == "offer":
        request.remote_tokens = _tokens(numbers, f"{id}.offered", shape)
        numbers.assume(request.remote_tokens <= request.num_tokens)
    return request


def _loading(numbers: Numbers, shape: Shape, id: str, arrival: int) -> Request:
    request = _request(numbers, shape, id, arrival)
    request.place = Place.PARKED
    request.external = _tokens(numbers, f"{id}.external", shape)
    numbers.assume(request.external <= request.num_tokens)
    _take_blocks(numbers, shape, request, request.external, decode=False, loads=True)
    return request


def _tokens(numbers: Numbers, name: str, shape: Shape, low: int = 1) -> int:
    """Any number of tokens from `low` on, written as whole blocks less a slack, so that its blocks are linear in it."""
    size = shape.block_size
    if size == 1:
        return numbers.int(name, low)  # type: ignore[no-any-return]
    return numbers.int(f"{name}/{size}", low) * size - numbers.int(f"{name}.slack", 0, size - 1)  # type: ignore[no-any-return]


def _take_blocks(
    numbers: Numbers, shape: Shape, request: Request, num_tokens: int, *, decode: bool, loads: bool
) -> None:
    """Blocks and promise: any that can be (`wrong_with`), or just what an undisturbed prefill has.

    Args:
        num_tokens: those that it has blocks for.
        decode: it is one, and may have used up some of its promise.
        loads: it was promised a first decode step beyond all known tokens; no block more if the last has room for it.
    """
    if shape.spare:
        request.num_blocks = numbers.int(f"{request.id}.blocks", 1)
        request.reserved = numbers.int(f"{request.id}.promised", 0)
        return
    if not decode:  # it was promised all that it knows, and has not grown
        request.num_prompt = request.num_tokens
    request.num_blocks = _blocks(num_tokens, shape)
    left = _blocks(request.num_tokens, shape) - request.num_blocks
    if loads:
        left += numbers.int(f"{request.id}.first_decode", 0, _blocks(1 + shape.drafts, shape))
    request.reserved = numbers.int(f"{request.id}.promised", 0) if decode else left
    numbers.assume(request.reserved <= left)


def _blocks(tokens: int, shape: Shape) -> int:
    return (tokens + shape.block_size - 1) // shape.block_size


def _rank(numbers: Numbers, requests: Sequence[Request]) -> None:
    """Give requests priorities that agree with their order in a list."""
    for request in requests:
        request.priority = numbers.int(f"{request.id}.priority")
    for one, other in pairwise(requests):
        numbers.assume(one.priority <= other.priority)


def _share(numbers: Numbers, pool: CountingPool, running: Sequence[Request]) -> None:
    assert isinstance(pool, SharingPool)
    pool.shared = numbers.int("shared_blocks", 1)
    pool.sharers = {request.id for request in running}
    owner = numbers.pick("owner", [request.id for request in running]) if running else ""
    for request in running:
        # A request that found the prefix had at least one token left to compute, so it has a block of its own.
        numbers.assume(pool.shared * pool.block_size <= request.num_computed - (0 if request.id == owner else 1))


def take_step(scheduler: Scheduler, throttle: bool) -> Facts:
    """Run one step of a scheduler; return it with the state on both sides."""
    before = observe(scheduler)
    step = scheduler.schedule(throttle)
    return Facts(scheduler.config, before, step, observe(scheduler))
