"""Everything about requests but the step itself: how they come, load, get their outputs, and go.

Every list is kept in one order: better priority first (under priority scheduling), then age.
"""

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from onbeat_reference.blocks import BlockPool
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import FinishReason, Request
from onbeat_spec.config import Config
from onbeat_spec.errors import ConfigError, ProtocolMisuse, RequestRefused
from onbeat_spec.policy import POLICIES, Policy
from onbeat_spec.records import Place, Step

PauseMode = Literal["new", "all"]


@dataclass(slots=True, eq=False)
class InFlight:
    """A scheduled step whose outputs have not come back: who will sample, and who no longer may."""

    step: Step
    sampling: list[Request] = field(default_factory=list)
    prefilled: list[Request] = field(default_factory=list)
    loads: dict[Request, int] = field(default_factory=dict)
    """Admitted with a load within this step: how many leading tokens that gives. Known to be good once it is back."""
    preempted: set[Request] = field(default_factory=set)
    """Preempted since: what they sampled is still theirs, but their counts have moved on (B40)."""


@dataclass(slots=True, eq=False)
class Outputs:
    """What the outputs of one step delivered."""

    tokens: dict[str, Sequence[int]]
    finished: list[Request]


class Lifecycle:
    """The state of one rank's scheduler, and every change of it outside a step.

    Args:
        config: sizes and modes.
        policy: by default the one that `config.policy` names.
        pool: the KV block pool; by default a `BlockPool` of the configured size.

    Raises:
        ConfigError: `config.policy` names no policy.
    """

    def __init__(self, config: Config, policy: Policy | None = None, pool: CountingPool | None = None) -> None:
        if policy is None:
            if config.policy not in POLICIES:
                raise ConfigError(f"policy is {config.policy!r}; it must be one of {', '.join(POLICIES)}")
            policy = POLICIES[config.policy]()
        self.config = config
        self.policy = policy
        self.pool = pool or BlockPool(
            config.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self.waiting: list[Request] = []
        self.parked: list[Request] = []
        """Waiting for a remote load in flight; each holds the blocks it loads into, and a slot."""
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        """Every live request."""
        self.orphans: list[Request] = []
        """Ended while loading: their blocks return once the store has stopped writing into them (B65)."""
        self.paused: PauseMode | None = None
        self.saturated = False
        self.held_steps = 0
        """Steps in a row that held, up to now."""
        self.num_steps = 0
        self.in_flight: deque[InFlight] = deque()
        self._arrivals = 0
        self._holders = 0
        """Waiting requests that hold blocks and a slot: their load has landed."""
        self._offers = 0
        """Waiting requests that a remote store has KV for, to be loaded before they run."""
        self._by_priority = config.scheduling == "priority"

    # --- Requests come and go ---------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Accept a request.

        Raises:
            RequestRefused: its id is live already (B51), it is empty, or it can never fit (B44). Nothing is kept.
        """
        if request.id in self.requests or any(orphan.id == request.id for orphan in self.orphans):
            raise RequestRefused(
                f"request {request.id!r} is live already, or its remote load is; use another id, or wait until both "
                "have ended"
            )
        if request.num_prompt < 1 or request.max_tokens < 1:
            raise RequestRefused(
                f"request {request.id!r} has {request.num_prompt} prompt tokens and max_tokens {request.max_tokens}; "
                "both must be at least 1"
            )
        if not 0 <= request.remote_tokens <= request.num_prompt:
            raise RequestRefused(
                f"request {request.id!r} offers {request.remote_tokens} remote tokens of a prompt of "
                f"{request.num_prompt}; they must be part of the prompt"
            )
        most = self.config.longest_request
        if not self.config.fits(request.num_prompt):
            raise RequestRefused(
                f"request {request.id!r} has {request.num_prompt} prompt tokens and can never fit: "
                f"{most - 1} is the most (max_model_len {self.config.max_model_len}, KV pool "
                f"{self.config.capacity} tokens); shorten the prompt or enlarge the pool"
            )
        request.limit = min(request.limit, most)
        request.arrival = self._arrivals
        self._arrivals += 1
        self.requests[request.id] = request
        self._enqueue(request)

    def abort(self, request: Request) -> bool:
        """End this very request, whatever it is doing; one that has ended already is left alone (B52)."""
        if request.place is Place.FINISHED or self.requests.get(request.id) is not request:
            return False
        self._finish(request, FinishReason.ABORT)
        return True

    def pause(self, mode: PauseMode = "new") -> None:
        """`new` admits nobody and lets running requests go on; `all` schedules nothing."""
        if mode not in ("new", "all"):
            raise ProtocolMisuse(f"pause mode is {mode!r}; it must be 'new' or 'all'")
        self.paused = mode

    def resume(self) -> None:
        """End a pause; without one, do nothing."""
        self.paused = None

    def reset_prefix_cache(self) -> None:
        """Preempt whatever runs and forget every cached block (B43)."""
        for request in tuple(self.running):
            self._preempt(request)
            if self.in_flight:
                # What the latest step samples for it is due before it may be computed again.
                request.eligible_at = max(request.eligible_at, self.num_steps - 1 + self.config.async_depth)
        self.pool.reset_cache()

    @property
    def num_slots(self) -> int:
        """Requests that hold one of `max_num_seqs` slots: running, loading, or landed and waiting."""
        return len(self.running) + len(self.parked) + self._holders

    def has_unfinished_requests(self) -> bool:
        """Whether the engine must go on stepping (B63)."""
        return bool(self.requests or self.orphans)

    # --- Remote KV ---------------------------------------------------------------------------------------------------

    def load_finished(self, request: Request) -> None:
        """A remote load has landed. A notice for anything but a load in flight changes nothing (B65)."""
        self._landed(request, request.external)

    def load_failed(self, request: Request, from_block: int = 0) -> None:
        """A remote load ended and its blocks from `from_block` on are not valid: that counts as landing (B63, B67).

        Of a load within a step this is told before the outputs of that step.
        """
        valid = max(from_block, 0) * self.config.block_size
        for flight in self.in_flight:
            if valid < flight.loads.get(request, 0):
                self._void(flight, request, valid)
                return
        self._landed(request, min(request.external, valid))

    def _landed(self, request: Request, valid: int) -> None:
        if request in self.orphans:
            self.orphans.remove(request)
            self.pool.release(request)
        elif request in self.parked:
            self.parked.remove(request)
            request.external = valid
            request.num_computed = min(valid, request.num_tokens - 1)
            request.load_deadline = 0
            self._enqueue(request)

    def _void(self, flight: InFlight, request: Request, valid: int) -> None:
        """A load within a step failed: what is sampled on it is void, also if the request was preempted since."""
        del flight.loads[request]
        for other in self.in_flight:
            if request in other.sampling:
                other.sampling.remove(request)
        if request.place is Place.RUNNING and request not in flight.preempted:
            self._roll_back(request, valid)

    def _roll_back(self, request: Request, valid: int) -> None:
        """Have a running request recompute from its first bad block."""
        self.pool.forget(request, valid // self.config.block_size)
        request.external = valid
        request.num_computed = valid
        request.num_placeholders = 0
        request.num_drafts = 0

    def _expire_loads(self, step: Step) -> None:
        """Give up loads at their deadline (B71)."""
        for request in (*self.parked, *self.orphans):
            if request.load_deadline and request.load_deadline <= step.index:
                step.cancelled.append(request.id)
                self._landed(request, 0)

    # --- Outputs -----------------------------------------------------------------------------------------------------

    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None
    ) -> Outputs:
        """Take the outputs of the oldest step in flight.

        Args:
            step: what `schedule` returned.
            sampled: for every request of `step` that reached its last known token, one token plus one for each draft
                token that was accepted.
            drafts: draft tokens proposed for each request's next step.

        Raises:
            ProtocolMisuse: `step` is not the oldest in flight, or a request's tokens are missing. Nothing is changed.
        """
        if not self.in_flight or self.in_flight[0].step is not step:
            raise ProtocolMisuse(f"step {step.index} is not the oldest in flight; update() takes them in order, once")
        flight = self.in_flight[0]
        rows = [sampled.get(request.id) for request in flight.sampling]
        if not all(rows):
            lacking = [
                request.id
                for request, tokens in zip(flight.sampling, rows, strict=True)
                if not tokens and request.place is not Place.FINISHED
            ]
            if lacking:
                raise ProtocolMisuse(f"step {step.index}: no sampled token for {', '.join(lacking)}")
        self.in_flight.popleft()
        self._confirm(flight)
        outputs = Outputs({}, [])
        delivered = outputs.tokens
        preempted, drafts_of, finished = flight.preempted, step.drafts, Place.FINISHED
        for request, tokens in zip(flight.sampling, rows, strict=True):
            if request.place is finished or tokens is None:
                continue
            if not preempted or request not in preempted:
                reserved = 1 + drafts_of[request.id] if drafts_of and request.id in drafts_of else 1
                request.num_placeholders -= reserved
                if reserved != len(tokens):
                    request.num_computed -= reserved - len(tokens)
            request.tokens.extend(tokens)
            request.num_tokens += len(tokens)
            delivered[request.id] = tokens
            if request.num_tokens >= request.limit or not request.stop_token_ids.isdisjoint(tokens):
                delivered[request.id] = self._end(request, tokens)
                outputs.finished.append(request)
        if drafts:
            self._propose(flight, drafts)
        return outputs

    def _confirm(self, flight: InFlight) -> None:
        """What a step prefilled is computed now: others may find it in the prefix cache."""
        for request in flight.prefilled:
            if request.place is Place.RUNNING and request not in flight.preempted:
                self.pool.commit(request)

    def _end(self, request: Request, tokens: Sequence[int]) -> Sequence[int]:
        """End a request whose last token is among `tokens`, the latest it got; return them up to that one."""
        stops, before = request.stop_token_ids, request.num_tokens - len(tokens)
        count = next(n for n, token in enumerate(tokens, 1) if token in stops or before + n >= request.limit)
        request.num_tokens = before + count
        if count < len(tokens):
            del request.tokens[count - len(tokens) :]  # from the end: what a request knows may be symbolic
        self._finish(request, FinishReason.STOP if tokens[count - 1] in stops else FinishReason.LENGTH)
        return tokens[:count]

    def _propose(self, flight: InFlight, drafts: Mapping[str, int]) -> None:
        """Book draft slots for those that sampled and still run; none beyond a request's last token."""
        for request in flight.sampling:
            count = drafts.get(request.id, 0)
            if count and request.place is Place.RUNNING and request not in flight.preempted:
                room = request.limit - request.num_tokens - request.num_placeholders - 1
                request.num_drafts = max(0, min(count, self.config.num_draft_tokens, room))

    # --- Book-keeping ------------------------------------------------------------------------------------------------

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a live request, wherever it is."""
        del self.requests[request.id]
        request.finish_reason = reason
        if request.place is Place.PARKED:
            self.parked.remove(request)
            self.orphans.append(request)
        else:
            if request.place is Place.RUNNING:
                self.running.remove(request)
            else:
                self._dequeue(request)
            self._drop_kv(request)
        request.place = Place.FINISHED

    def _drop_kv(self, request: Request) -> int:
        """Give up a request's blocks and every count that speaks of them (B67); return the blocks released."""
        if not any(request in flight.loads for flight in self.in_flight):
            self.pool.commit(request)
        released = self.pool.release(request)
        request.num_computed = 0
        request.num_placeholders = 0
        request.num_drafts = 0
        request.external = 0
        return released

    def _key(self, request: Request) -> tuple[int, int]:
        """Sort key: better first."""
        return (request.priority if self._by_priority else 0, request.arrival)

    def _enqueue(self, request: Request) -> None:
        """Put a request into the waiting list, at the place that its priority and age give it (B49)."""
        request.place = Place.WAITING
        insort(self.waiting, request, key=self._key)
        self._count(request, 1)

    def _dequeue(self, request: Request) -> None:
        """Take a request from the waiting list, before anything of it changes."""
        self.waiting.remove(request)
        self._count(request, -1)

    def _count(self, request: Request, one: int) -> None:
        if request.num_blocks > 0:
            self._holders += one
        elif request.remote_tokens > 0 and not request.sync_load:
            self._offers += one

    def _preempt(self, request: Request) -> int:
        """Send a running request back to the waiting list, to be recomputed; return the blocks this released."""
        self.running.remove(request)
        released = self._drop_kv(request)
        request.num_preemptions += 1
        for flight in self.in_flight:
            flight.preempted.add(request)
        self._enqueue(request)
        return released
