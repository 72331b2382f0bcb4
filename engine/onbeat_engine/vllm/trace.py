"""What the recorder remembers of a vLLM scheduler between two calls, and what it writes down."""

import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from onbeat_reference.observe_vllm import (
    Arrivals,
    chunks,
    config_of,
    facts_of,
    holds,
    local_hold,
    observe_vllm,
    paused,
    place_of,
    step_of,
    view_of,
    waiting_requests,
)
from onbeat_reference.parts import Totals, left_waiting, partial, was
from onbeat_reference.trace_writer import TraceOptions, TraceWriter
from onbeat_spec.records import LockStep, Place, State, Step, View
from onbeat_spec.trace import Accepted, CacheReset, Header, Notice, PauseMode, StepRecord, Update

Vllm = Any


class _Look(NamedTuple):
    """What is remembered from before a step."""

    running: list[Vllm]
    holders: dict[str, View]
    """Waiting requests that hold blocks, or whose loads are in flight."""
    chunks: frozenset[str]
    hold: bool
    local: bool
    paused: str | None
    saturated: bool


class VllmTraceRecorder:
    """Writes down one vLLM scheduler."""

    def __init__(self, scheduler: Vllm, options: TraceOptions) -> None:
        self.scheduler = scheduler
        self.arrivals = Arrivals()
        self.config = config_of(scheduler)
        self.audit_every = options.audit_every
        self.index = 0
        """Calls of `schedule()`."""
        self.flights: list[tuple[int, Vllm]] = []
        """Steps whose outputs have not come back, with what `schedule()` returned."""
        self.lock: LockStep | None = None
        self.errors = 0
        self.look: _Look | None = None
        self.victims: dict[str, View] = {}
        """Preempted since the step began: how they stood before it, with the blocks that they gave back."""
        parallel = scheduler.parallel_config
        self.rank = int(getattr(parallel, "data_parallel_index", parallel.data_parallel_rank))
        # A rank that shares nothing with others was made one of a group of one (vLLM, dense models).
        self.ranks = max(int(parallel.data_parallel_size), 1)
        self.writer = TraceWriter(options, self.rank, self._header)

    def __deepcopy__(self, memo: object) -> None:
        """A copy of a scheduler is somebody's experiment, and not recorded."""

    def _header(self, run: str, part: int, lost: int) -> Header:
        kind = type(self.scheduler)
        return Header(
            rank=self.rank if self.ranks > 1 else 0,
            ranks=self.ranks,
            config=self.config,
            policy=self.config.policy,
            scheduler=f"{kind.__module__}:{kind.__qualname__}",
            state=observe_vllm(self.scheduler, self.arrivals, in_flight=len(self.flights)),
            run=run,
            part=part,
            next_step=self.index,
            started=round(time.time(), 3),
            software=_software(),
            lost=lost,
            flights=tuple((index, dict(output.num_scheduled_tokens)) for index, output in self.flights),
        )

    # --- One step ----------------------------------------------------------------------------------------------------

    def before(self, throttle: bool) -> None:
        """A step is about to be scheduled."""
        scheduler = self.scheduler
        self.victims.clear()
        self.look = _Look(
            running=list(scheduler.running),
            holders={r.request_id: self.view(r) for r in _holders(scheduler)},
            chunks=chunks(scheduler),
            hold=holds(scheduler, throttle),
            local=local_hold(scheduler),
            paused=paused(scheduler),
            saturated=bool(getattr(scheduler, "prefill_capacity_bound", False)),
        )

    def after(self, throttle: bool, output: Vllm) -> None:
        """It was scheduled."""
        look, self.look = self.look, None
        if look is None:
            return
        index = self.index
        self.index += 1
        self.flights.append((index, output))
        before, after = self._around(look, output)
        step = step_of(
            output,
            before,
            after,
            self.config,
            index=index,
            throttle=throttle or look.local,
            hold=look.hold,
            paused=look.paused,
            chunks=look.chunks,
        )
        facts = facts_of(self.config, before, step, after)
        whole = None
        if index % self.audit_every == 0 or not self.scheduler.requests:
            whole = observe_vllm(self.scheduler, self.arrivals, in_flight=len(self.flights))
        lock, self.lock = self.lock, None
        mode: PauseMode | None = "new" if look.paused == "new" else "all" if look.paused == "all" else None
        self.writer.write(StepRecord(step, facts.before, after, whole, mode, lock, self.writer.now()))

    def _around(self, look: _Look, output: Vllm) -> tuple[State, State]:
        """Return the parts of the states on both sides of a step that stand out."""
        scheduler, scheduled = self.scheduler, output.num_scheduled_tokens
        before: dict[str, View] = {}
        after: dict[str, View] = {}
        served = 0
        for request in look.running:
            id = request.request_id
            if id in scheduled:
                served += 1
            elif id in self.victims:
                before[id], after[id] = self.victims[id], self.view(request)
            elif id in scheduler.requests:
                before[id] = after[id] = self.view(request, ahead=0)
        if served != len(scheduled):
            ran = {request.request_id for request in look.running}
            for id in scheduled:
                if id not in ran:
                    after[id] = self.view(scheduler.requests[id])
                    landed = [id] if id in look.holders else []
                    step = Step(self.index, False, scheduled={id: scheduled[id]}, resumed=landed)
                    before[id] = look.holders.get(id) or was(step, after[id])
        loading = 0
        for request in _holders(scheduler):
            id = request.request_id
            place, _ = place_of(scheduler, request)
            loading += place is Place.PARKED
            if place is Place.PARKED and id not in look.holders:
                after[id] = self.view(request)
                before[id] = was(Step(self.index, False), after[id])
        waiting = (self.view(request) for request in waiting_requests(scheduler))
        for each in left_waiting((each for each in waiting if each.place is Place.WAITING), self.index, 0):
            after[each.id] = each
            before.setdefault(each.id, look.holders.get(each.id, each))
        if self.victims:
            self._growers(look, output, before, after)
        totals = self.totals(loading)
        now = partial(after, totals, bool(getattr(scheduler, "prefill_capacity_bound", False)))
        return partial(before, totals, look.saturated), now

    def _growers(self, look: _Look, output: Vllm, before: dict[str, View], after: dict[str, View]) -> None:
        """Add the best of those that got blocks: the victims were preempted for one of them."""
        cached = output.scheduled_cached_reqs
        got = {id for id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks and any(blocks)}
        grown = [self.view(r) for r in look.running if r.request_id in got and r.request_id not in self.victims]
        if grown:
            by_priority = self.config.scheduling == "priority"
            best = min(grown, key=lambda each: (each.priority if by_priority else 0, each.arrival))
            # Its counts before the step, as far as the invariants of an eviction read them.
            given = output.num_scheduled_tokens[best.id]
            before[best.id] = best._replace(num_computed=best.num_computed - given, num_blocks=best.num_blocks - 1)
            after[best.id] = best

    def totals(self, loading: int) -> Totals:
        """Count everybody."""
        scheduler = self.scheduler
        owed = sum(self.view(r).reserved for r in scheduler.running if r.is_prefill_chunk)
        owed += sum(self.view(r).reserved for r in _holders(scheduler))
        queued = sum(len(getattr(scheduler, name, ())) for name in ("waiting", "kv_holding_waiting", "skipped_waiting"))
        ended = len(scheduler.requests) - len(scheduler.running) - queued
        return Totals(
            free=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            promised=owed,
            num_running=len(scheduler.running),
            num_loading=loading + max(0, ended),
            num_slots=len(scheduler.running),
            in_flight=len(self.flights),
        )

    def view(self, request: Vllm, *, ahead: int = 1) -> View:
        """Return a request as it stands now, as the next step will find it, or the latest found it."""
        return view_of(self.scheduler, request, self.arrivals.of(request.request_id), ahead=ahead)

    # --- Between steps -----------------------------------------------------------------------------------------------

    def preempted(self, request: Vllm, was: View, free: int) -> None:
        """A request was preempted; there were `free` blocks before that."""
        released = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() - free
        if self.look is not None:
            self.victims[request.request_id] = was._replace(num_blocks=released)
        else:
            self.writer.write(CacheReset((request.request_id,)))

    def updated(self, output: Vllm, results: Vllm) -> None:
        """Outputs of a step were delivered."""
        index = next((index for index, each in self.flights if each is output), None)
        if index is None:
            return
        self.flights = [(number, each) for number, each in self.flights if number > index]
        delivered: dict[str, int] = {}
        finished: dict[str, str] = {}
        for of_client in results.values():
            for each in of_client.outputs:
                delivered[each.request_id] = len(each.new_token_ids)
                if each.finish_reason is not None:
                    finished[each.request_id] = str(each.finish_reason)
        scheduled = output.num_scheduled_tokens
        tokens = {id: delivered.get(id, 0) for id in scheduled if delivered.get(id, 0) != 1}
        tokens.update((id, count) for id, count in delivered.items() if id not in scheduled and count)
        # Whoever ended before its outputs came back gets none.
        self.writer.write(Update(index, tokens, finished, self.writer.now()))

    def accepted(self, request: Vllm) -> None:
        """A request was added."""
        self.arrivals.came(request.request_id)
        limit = min(request.num_prompt_tokens + request.max_tokens, self.scheduler.max_model_len)
        self.writer.write(Accepted(request.request_id, request.num_prompt_tokens, limit))

    def ended(self, ids: list[str], live: set[str]) -> None:
        """Requests were ended from outside."""
        for id in ids:
            self.writer.write(Notice("abort", id, known=id in live))


def _holders(scheduler: Vllm) -> list[Vllm]:
    """Return the waiting requests that hold blocks, or load."""
    name = "kv_holding_waiting" if hasattr(scheduler, "kv_holding_waiting") else "skipped_waiting"
    queue = getattr(scheduler, name, ())
    return [r for r in queue if r.num_computed_tokens > 0 or r.status.name == "WAITING_FOR_REMOTE_KVS"]


def _software() -> dict[str, str]:
    """Return the versions that a reader of the trace wants to know."""
    versions = {"python": sys.version.partition(" ")[0]}
    for name in ("onbeat", "torch"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if "vllm" in sys.modules:
        versions["vllm"] = str(getattr(sys.modules["vllm"], "__version__", "unknown"))
    return versions
