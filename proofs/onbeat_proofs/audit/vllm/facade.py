"""One scheduler of vLLM's family behind the interface of the reference's `Scheduler`, so that every check can drive it.

Nothing here knows the policy: what a step did is read off the scheduler before and after it, and whom a throttled step
held is found by asking a copy for the step without the throttle.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from onbeat_proofs.audit.vllm import library
from onbeat_proofs.audit.vllm.releases import names_its_text
from onbeat_proofs.audit.vllm.shape import shape
from onbeat_proofs.foreign.branching import branch
from onbeat_proofs.foreign.families import DecidesItself
from onbeat_proofs.scenarios.operations import Add, Ineligible, Op, RemoteDone, RemoteFailed, ResetPrefixCache
from onbeat_reference.lifecycle import Outputs, PauseMode
from onbeat_reference.observe_vllm import block_ids, chunks, owed, place_of, waiting_requests
from onbeat_reference.request import FinishReason, Request
from onbeat_spec.config import Config
from onbeat_spec.errors import RequestRefused
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Eviction, Place, Step

FLAG = "prefill_capacity_bound"
"""vLLM's name of the saturation flag."""


class Unwritten(int):
    """The flag's value as a step finds it; another type afterwards says that the step wrote it."""


class VllmFlight(NamedTuple):
    """A step whose outputs have not come back."""

    step: Step
    output: Any
    sampling: tuple[Request, ...]
    loads: Mapping[Request, int]


class Pool:
    """The KV block pool, as invariants see it."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.promised = 0
        """Blocks that chunks need beyond those they hold. vLLM keeps no account of them; whoever admits should."""

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def table(self, id: str) -> list[int]:
        """Return the block ids of a request."""
        return list(block_ids(self._scheduler, id)[0])

    def held(self, requests: Sequence[Request]) -> int:
        """Count the distinct blocks that requests hold, and those whose return waits for a step in flight."""
        blocks = {block for request in requests for block in self.table(request.id)}
        blocks.update(block.block_id for _, late in self._scheduler.deferred_frees for block in late)
        return len(blocks)


class VllmScheduler(DecidesItself):
    """A real scheduler object of vLLM's family.

    Args:
        cls: its class.
        config: sizes and modes. What vLLM does not have (a hard bound of holds, a deadline for loads) is left out.
    """

    loads_hold_slots = False

    def __init__(self, cls: Any, config: Config) -> None:
        # As with the reference, the last token of a request needs no block.
        self.max_model_len = config.longest_request
        self.real = library.harness().make_scheduler(
            cls,
            block_size=config.block_size,
            num_blocks=config.num_blocks,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
            max_model_len=self.max_model_len,
            policy=config.scheduling,
            enable_prefix_caching=config.enable_prefix_caching,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
        )
        self.config = config
        self.pool = Pool(self.real)
        self.requests: dict[str, Request] = {}
        self.orphans: list[Request] = []
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.parked: list[Request] = []
        self.in_flight: deque[VllmFlight] = deque()
        self.aside: Collection[str] = frozenset()
        """Waiting requests that vLLM's flag does not count: they were blocked, or are."""
        self.chunks: frozenset[str] = frozenset()
        """Running requests that vLLM counts as prefills: also with one token of their prompt left."""
        self.paused: PauseMode | None = None
        self.num_steps = 0
        self._arrivals = 0

    @property
    def saturated(self) -> bool:
        """The saturation flag; False where the class has none."""
        return bool(getattr(self.real, FLAG, False))

    # --- Requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Accept a request, as vLLM's front end does: what can never run does not come as far as the scheduler.

        Raises:
            RequestRefused: its id is live, or it can never have room.
        """
        if request.id in self.real.requests:
            raise RequestRefused(f"{request.id} is live; use another id")
        if request.num_prompt < 1 or not self.config.fits(request.num_prompt) or request.max_tokens < 1:
            raise RequestRefused(
                f"{request.id} has {request.num_prompt} prompt tokens; it must have 1 to {self.max_model_len - 1}"
            )
        request.limit = min(request.limit, self.max_model_len)
        request.arrival = self._arrivals
        self._arrivals += 1
        if request.remote_tokens and self.real.connector is not None:
            self.real.connector.offers[request.id] = request.remote_tokens, not request.sync_load
        self.real.add_request(
            library.harness().make_request(
                request.id,
                list(request.tokens),
                request.limit - request.num_prompt,
                arrival=request.arrival,
                priority=request.priority,
                stop=request.stop_token_ids,
                block_size=self.config.block_size if self.config.enable_prefix_caching else 0,
            )
        )
        self.requests[request.id] = request
        self._look()

    def abort(self, request: Request) -> None:
        """The client goes away; a request that has ended is left alone, as by vLLM's front end."""
        if self.requests.get(request.id) is not request:
            return
        self.real.finish_requests(request.id, library.part("v1.request").RequestStatus.FINISHED_ABORTED)
        request.finish_reason = FinishReason.ABORT
        self._look()

    def load_finished(self, request: Request) -> None:
        """The store says that a load has landed."""
        self._transfer(request, set())

    def load_failed(self, request: Request, from_block: int) -> None:
        """The store says that a load ended, and that from this block on it brought nothing valid."""
        loaded = -(-request.external // self.config.block_size)
        if self.real.connector is not None and request.id in self.real.connector.taken:
            valid = min(request.external, from_block * self.config.block_size)
            self.real.connector.taken[request.id] = valid
        self._transfer(request, set(self.pool.table(request.id)[from_block:loaded]))

    def _transfer(self, request: Request, invalid: set[int]) -> None:
        """Hand a notice over as vLLM's worker does: with the outputs of a step, here an empty one."""
        library.harness().report_load(self.real, request.id, invalid)
        self._look()

    def has_unfinished_requests(self) -> bool:
        """Whether anybody is live."""
        return bool(self.requests)

    def pause(self, mode: PauseMode) -> None:
        """Stop admission (`new`) or everything (`all`)."""
        self.paused = mode
        self._set_pause(f"PAUSED_{mode.upper()}")

    def resume(self) -> None:
        """End a pause."""
        self.paused = None
        self._set_pause("UNPAUSED")

    def _set_pause(self, name: str) -> None:
        self.real.set_pause_state(getattr(library.part("v1.core.sched.interface").PauseState, name))

    def reset_prefix_cache(self) -> None:
        """Forget every cached block; whatever runs is preempted."""
        self.real.reset_prefix_cache(reset_running_requests=True)
        self._look()

    def flip_flag(self) -> None:
        """Set the flag to what it is not: a step without the throttle must not care."""
        setattr(self.real, FLAG, not self.saturated)

    # --- The step ----------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> Step:
        """Let the real scheduler decide one step, and describe it."""
        twin = branch(self, {}) if throttle_prefills else None
        step = self._schedule(throttle_prefills)
        if twin is not None:
            _tell_holds(step, twin._schedule(False))
        return step

    def _schedule(self, throttle: bool) -> Step:
        step = Step(self.num_steps, throttle)
        step.open = self.paused is None
        ran = {request.id: request for request in self.running}
        parked = {request.id for request in self.parked}
        work = {request.id: local_work(request) for request in self.running}
        holders = {request.id for request in self.waiting if request.num_blocks > 0}
        self.num_steps += 1
        with self._evictions() as evictions, self._budget():
            if hasattr(self.real, FLAG):
                setattr(self.real, FLAG, Unwritten(self.saturated))
            # By position, as the engine calls it.
            output = self.real.schedule(throttle)
        if not hasattr(output, "num_scheduled_tokens"):
            raise TypeError(f"schedule() returned {type(output).__name__}; it must return a SchedulerOutput")
        flag = getattr(self.real, FLAG, None)
        step.wrote_flag = flag is not None and not isinstance(flag, Unwritten)
        if isinstance(flag, Unwritten):
            setattr(self.real, FLAG, bool(flag))
        step.scheduled = dict(output.num_scheduled_tokens)
        step.budget = self.config.max_num_batched_tokens - sum(step.scheduled.values())
        step.drafts = {id: len(tokens) for id, tokens in output.scheduled_spec_decode_tokens.items()}
        self._look()
        step.admitted = [request.id for request in self.running if request.id not in ran]
        step.resumed = [id for id in step.admitted if id in holders]
        step.loading = [request.id for request in self.parked if request.id not in parked]
        out = [id for id, request in ran.items() if request.place is Place.WAITING]
        step.evictions = [eviction for eviction in evictions if eviction.victim in out]
        victims = {eviction.victim for eviction in step.evictions}
        step.evictions += [Eviction(id, id, 0) for id in out if id not in victims]
        for id in step.admitted:
            request = self.requests[id]
            work[id] = request.num_tokens - request.num_computed + step.scheduled.get(id, 0)
        step.prefill = any(not is_decode(work[id]) for id in step.scheduled if id in work)
        step.hold = throttle and not step.wrote_flag and step.offers_admission
        step.saturated = self.saturated
        sampling = tuple(self.requests[id] for id in step.scheduled if id in work and step.scheduled[id] >= work[id])
        if not self._counts_placeholders:
            for request in sampling:
                request.num_placeholders += 1 + step.drafts.get(request.id, 0)
        loads = {self.requests[id]: self.requests[id].external for id in step.admitted if self.requests[id].sync_load}
        self.in_flight.append(VllmFlight(step, output, sampling, {r: n for r, n in loads.items() if n}))
        return step

    @contextmanager
    def _evictions(self) -> Iterator[list[Eviction]]:
        """Note who is preempted, for whom, and what that brings, while a step is decided."""
        real, evictions = self.real, list[Eviction]()
        manager, free = real.kv_cache_manager, self.pool
        allocating: list[str] = [""]
        # A class may have put functions of its own there.
        own_allocate, own_preempt = vars(manager).get("allocate_slots"), vars(real).get("_preempt_request")
        allocate, preempt = manager.allocate_slots, getattr(real, "_preempt_request", None)

        def note_allocation(request: Any, *args: Any, **kwargs: Any) -> Any:
            allocating[0] = request.request_id
            return allocate(request, *args, **kwargs)

        def note_preemption(request: Any, *args: Any, **kwargs: Any) -> Any:
            before = free.free
            result = preempt(request, *args, **kwargs)  # type: ignore[misc]  # only installed where there is one
            evictions.append(Eviction(request.request_id, allocating[0] or request.request_id, free.free - before))
            return result

        manager.allocate_slots = note_allocation
        if preempt is not None:
            real._preempt_request = note_preemption
        try:
            yield evictions
        finally:
            _put_back(manager, "allocate_slots", own_allocate)
            _put_back(real, "_preempt_request", own_preempt)

    @contextmanager
    def _budget(self) -> Iterator[None]:
        """Give the step the budget that the configuration says now."""
        usual = self.real.max_num_scheduled_tokens
        self.real.max_num_scheduled_tokens = min(usual, self.config.max_num_batched_tokens)
        try:
            yield
        finally:
            self.real.max_num_scheduled_tokens = usual

    @property
    def _counts_placeholders(self) -> bool:
        """The real scheduler counts the tokens that steps in flight will sample."""
        return library.is_asynchronous(type(self.real))

    def update(
        self, step: Step, sampled: Mapping[str, Sequence[int]], drafts: Mapping[str, int] | None = None
    ) -> Outputs:
        """Hand the outputs of the oldest step in flight back.

        Args:
            step: that step.
            sampled: token ids for each request that sampled.
            drafts: how many draft tokens are proposed for the next step of each request.
        """
        flight = self.in_flight.popleft()
        before = self.requests.copy()
        rows = {id: list(sampled.get(id, ())) for id in flight.output.num_scheduled_tokens}
        results = self.real.update_from_output(flight.output, library.harness().runner_output(rows))
        tokens: dict[str, Sequence[int]] = {}
        finished: list[Request] = []
        for results_of_client in results.values():
            for result in results_of_client.outputs:
                if result.new_token_ids:
                    tokens[result.request_id] = list(result.new_token_ids)
                if result.finish_reason is not None and result.request_id in before:
                    request = before[result.request_id]
                    request.finish_reason = _reason(result.finish_reason)
                    finished.append(request)
        if not self._counts_placeholders:
            for request in flight.sampling:
                request.num_placeholders = 0
        if drafts and not self._counts_placeholders:
            proposals = library.part("v1.outputs").DraftTokenIds(
                list(drafts), [[0] * count for count in drafts.values()]
            )
            self.real.update_draft_token_ids(proposals)
        self._look()
        return Outputs(tokens, finished)

    # --- Looking -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read everything off the real scheduler again."""
        real = self.real
        for id in [id for id in self.requests if not self._is_live(id)]:
            request = self.requests.pop(id)
            request.place = Place.FINISHED
            if id in real.requests:
                self.orphans.append(request)
        self.orphans = [request for request in self.orphans if request.id in real.requests]
        self.chunks = chunks(real)
        name = "deferred_waiting" if hasattr(real, "deferred_waiting") else "skipped_waiting"
        away: Iterable[Any] = getattr(real, name, ())
        self.aside = frozenset(request.request_id for request in away)
        offers, taken = ({}, {}) if real.connector is None else (real.connector.offers, real.connector.taken)
        for id, request in self.requests.items():
            real_request = real.requests[id]
            request.place, ready = place_of(real, real_request)
            request.eligible_at = 0 if ready or request.place is Place.PARKED else self.num_steps + 1
            request.num_tokens = real_request.num_tokens
            request.num_computed = real_request.num_computed_tokens
            if request.place is Place.WAITING and ready:
                # The last token of a prompt that was loaded whole is computed again; the step that admits it says so.
                request.num_computed = min(request.num_computed, real_request.num_tokens - 1)
            request.num_blocks = len(self.pool.table(id))
            request.num_drafts = len(real_request.spec_token_ids)
            request.num_preemptions = real_request.num_preemptions
            if self._counts_placeholders:
                request.num_placeholders = real_request.num_output_placeholders
            elif request.place is not Place.RUNNING:
                request.num_placeholders = 0
            request.remote_tokens = offers.get(id, (0, False))[0]
            if not request.num_blocks:
                taken.pop(id, None)
            request.external = taken.get(id, 0)
            request.reserved = owed(real, real_request, request.place, block_ids(real, id))
        self.pool.promised = sum(request.reserved for request in self.requests.values())
        for request in self.orphans:
            request.num_blocks = len(self.pool.table(request.id))
        self.running = self._of(real.running)
        queued = self._of(waiting_requests(real))
        self.waiting = [request for request in queued if request.place is not Place.PARKED]
        self.parked = [request for request in queued if request.place is Place.PARKED]

    def _is_live(self, id: str) -> bool:
        request = self.real.requests.get(id)
        return request is not None and place_of(self.real, request)[0] is not Place.FINISHED

    def _of(self, real_requests: Iterable[Any]) -> list[Request]:
        return [self.requests[item.request_id] for item in real_requests if item.request_id in self.requests]

    @property
    def counted_as_chunks(self) -> Collection[str] | None:
        """Running requests that the text takes for chunks, whatever their local work; None: the text asks that."""
        return None if names_its_text(type(self.real)) else self.chunks

    # --- For those who drive it --------------------------------------------------------------------------------------

    def shape(self, names: Mapping[str, int]) -> tuple[Any, ...]:
        """Return what the future depends on, requests named by numbers; see `onbeat_proofs.audit.vllm.shape`."""
        return shape(self, names)

    def cannot(self, op: Op) -> str | None:
        """Return why an operation means nothing to vLLM's schedulers; None: it does."""
        if isinstance(op, Add) and any(op.id in flight.output.num_scheduled_tokens for flight in self.in_flight):
            return "no id is used again while outputs for its last bearer are in flight: the front end makes ids unique"
        if isinstance(op, Ineligible):
            return "no request can be told to sit steps out"
        if isinstance(op, RemoteFailed) and any(request.id == op.id for request in self.orphans):
            return "a connector reports an orphan's load as ended, whatever came of it"
        if isinstance(op, RemoteDone | RemoteFailed):
            loading = any(request.id == op.id for request in (*self.parked, *self.orphans))
            return None if loading else "a connector reports only loads in flight"
        holders = any(request.num_blocks > 0 for request in (*self.waiting, *self.parked, *self.orphans))
        if isinstance(op, ResetPrefixCache) and (self.in_flight or holders):
            return "what is in flight is dropped on purpose, and loaded requests make it refuse"
        return None


def _put_back(owner: Any, name: str, own: Any) -> None:
    """Restore an attribute of an object: its own one, or none, so that its class's counts again."""
    if own is None:
        vars(owner).pop(name, None)
    else:
        setattr(owner, name, own)


def _reason(finish_reason: Any) -> FinishReason:
    return {
        "stop": FinishReason.STOP,
        "length": FinishReason.LENGTH,
        "abort": FinishReason.ABORT,
    }.get(str(finish_reason), FinishReason.ERROR)


def _tell_holds(step: Step, without: Step) -> None:
    """Say whom a throttled step held: who would have got tokens, or a load, without the throttle."""
    out = {eviction.victim for eviction in step.evictions}
    served = {*step.scheduled, *step.loading, *out}
    step.held = [id for id in (*without.scheduled, *without.loading) if id not in served]
    step.hold = step.hold or bool(step.held)
