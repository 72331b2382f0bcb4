"""What invariants see of a vLLM scheduler: its state and its steps as our records, read by attribute.

Nothing of vLLM is imported: an object with these attributes will do. Releases differ in a few names, and all of that
is here (0.24.0 to 0.33.0). What vLLM keeps to itself is inferred, always so that nobody is accused wrongly:

- *hold*: whether the step deferred prefills is a local variable; `holds` asks the same question beforehand.
- *held*: chunks that a hold passed over; and the first waiting request that could have run, since the scan stops there.
- *cause* of an eviction: the best of those whose blocks grew in the step, or else the victim itself.
- *reserved*: vLLM books no promises. A request that is being prefilled or loaded is owed blocks for all it knows.
- *external*: a request that waits with computed tokens got them from a remote load. Offers are unknown beforehand;
  `facts_of` fills in what a load turned out to take.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from onbeat_spec.config import Config
from onbeat_spec.invariants.words import better
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Eviction, Facts, Place, State, Step, View

NEVER = 1 << 62
"""`eligible_at` of a request that waits for something else than this scheduler."""

Vllm = Any
"""A vLLM scheduler, request or scheduler output: known by its attributes only."""

_NOT_READY = frozenset({"WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_FSM", "WAITING_FOR_STREAMING_REQ"})


class Arrivals:
    """Numbers requests in the order in which a scheduler got them; vLLM keeps only a wall time, and a dict's order."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._next = 0

    def came(self, id: str) -> None:
        """A request was added under this id, perhaps not the first."""
        self._numbers[id] = self._next
        self._next += 1

    def number(self, requests: Iterable[str]) -> Mapping[str, int]:
        """Return a number for each of all the requests there are, which come in the order in which they were added."""
        numbers = self._numbers
        present = 0
        for id in requests:
            present += 1
            if id not in numbers:
                self.came(id)
        if present < len(numbers):
            here = set(requests)
            for id in [id for id in numbers if id not in here]:
                del numbers[id]
        return numbers

    def of(self, id: str) -> int:
        """Return the number of one request."""
        if id not in self._numbers:
            self.came(id)
        return self._numbers[id]


# --- The configuration -----------------------------------------------------------------------------------------------


def config_of(scheduler: Vllm, policy: str = "local-work") -> Config:
    """Return a vLLM scheduler's configuration under our names.

    Raises:
        ConfigError: a value that no scheduler of ours can have.
    """
    options, parallel = scheduler.scheduler_config, scheduler.parallel_config
    interval = int(getattr(options, "prefill_schedule_interval", 1) or 1)
    return Config(
        policy=policy,
        scheduling="priority" if by_priority(scheduler) else "fcfs",
        block_size=int(scheduler.block_size),
        num_blocks=int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1,  # one is the null block
        max_num_batched_tokens=int(scheduler.max_num_scheduled_tokens),
        max_num_seqs=int(scheduler.max_num_running_reqs),
        max_model_len=int(scheduler.max_model_len),
        enable_prefix_caching=bool(scheduler.cache_config.enable_prefix_caching),
        long_prefill_token_threshold=int(getattr(options, "long_prefill_token_threshold", 0) or 0),
        num_draft_tokens=int(getattr(scheduler, "num_spec_tokens", 0) or 0),
        async_depth=2 if getattr(options, "async_scheduling", False) else 1,
        prefill_schedule_interval=interval,
        data_parallel_size=int(parallel.data_parallel_size),
        max_hold_steps=max(64, interval - 1),
    )


# --- The state -------------------------------------------------------------------------------------------------------


def paused(scheduler: Vllm) -> str | None:
    """Return `new` (nobody is admitted), `all` (nothing is scheduled) or None."""
    state = getattr(getattr(scheduler, "_pause_state", None), "name", "UNPAUSED")
    return {"PAUSED_NEW": "new", "PAUSED_ALL": "all"}.get(state)


def waiting_requests(scheduler: Vllm) -> Iterator[Vllm]:
    """Yield the requests that are not running, in the order in which a step looks at them.

    Up to 0.30 blocked requests wait in `skipped_waiting`, from 0.31 on those with KV blocks in `kv_holding_waiting`.
    Under FCFS both are looked at before `waiting`; under priority `skipped_waiting` is merged with it.
    """
    if hasattr(scheduler, "kv_holding_waiting"):
        yield from scheduler.kv_holding_waiting
    elif by_priority(scheduler):
        yield from sorted([*getattr(scheduler, "skipped_waiting", ()), *scheduler.waiting])
        return
    else:
        yield from getattr(scheduler, "skipped_waiting", ())
    yield from scheduler.waiting


def by_priority(scheduler: Vllm) -> bool:
    """Whether priority scheduling is on."""
    return bool(getattr(getattr(scheduler, "policy", None), "value", "fcfs") == "priority")


def view_of(scheduler: Vllm, request: Vllm, arrival: int, *, ahead: int = 1) -> View:
    """Return a vLLM request as it stands now; `ahead` says for which step: 1 = the next one, 0 = the latest."""
    num_tokens: int = request.num_tokens
    computed, external = request.num_computed_tokens, 0
    place, ready = place_of(scheduler, request, ahead)
    if place is Place.PARKED:
        computed, external = 0, computed
    elif place is Place.WAITING and computed and not getattr(request, "resumable", False):
        computed = external = min(computed, num_tokens - 1)
    groups = block_ids(scheduler, request.request_id)
    num_blocks = sum(map(len, groups))
    return View(
        id=request.request_id,
        priority=request.priority,
        arrival=arrival,
        limit=min(request.num_prompt_tokens + request.max_tokens, scheduler.max_model_len),
        num_prompt=request.num_prompt_tokens,
        num_tokens=num_tokens,
        # The synchronous class keeps no placeholders; its draft tokens count as computed until their step is back.
        num_placeholders=max(request.num_output_placeholders, computed - num_tokens),
        num_computed=computed,
        num_drafts=len(request.spec_token_ids),
        external=external,
        remote_tokens=0,
        sync_load=False,
        num_blocks=num_blocks,
        reserved=owed(scheduler, request, place, groups),
        eligible_at=0 if ready else NEVER,
        place=place,
    )


def place_of(scheduler: Vllm, request: Vllm, ahead: int = 1) -> tuple[Place, bool]:
    """Return where a request is, and whether the step that lies so far `ahead` may run it."""
    status = request.status.name
    if status == "RUNNING":
        return Place.RUNNING, getattr(request, "next_decode_eligible_step", 0) <= current_step(scheduler) + ahead
    if status == "WAITING_FOR_REMOTE_KVS":
        landed = request.request_id in scheduler.finished_recving_kv_req_ids
        return (Place.WAITING, True) if landed else (Place.PARKED, False)
    if status in ("WAITING", "PREEMPTED"):
        stale = getattr(request, "num_stale_output_tokens", 0) and not getattr(request, "drop_stale_output", False)
        return Place.WAITING, not stale
    return (Place.WAITING, False) if status in _NOT_READY else (Place.FINISHED, False)


def current_step(scheduler: Vllm) -> int:
    """Return the number of `schedule()` calls so far; where the scheduler does not count them, it has no use for it."""
    return int(getattr(scheduler, "current_step", NEVER))


def block_ids(scheduler: Vllm, id: str) -> Sequence[Sequence[int]]:
    """Return a request's block table without null blocks, for each KV cache group."""
    null = getattr(getattr(scheduler.kv_cache_manager.block_pool, "null_block", None), "block_id", 0)
    groups = scheduler.kv_cache_manager.get_block_ids(id)
    return [[block for block in group if block != null] if null in group else group for group in groups]


def owed(scheduler: Vllm, request: Vllm, place: Place, groups: Sequence[Sequence[int]]) -> int:
    """Return the blocks that a request that was let in still needs for all its known tokens; 0 for others."""
    if place is Place.RUNNING:
        if not request.is_prefill_chunk:
            return 0
    elif place is Place.FINISHED or not any(groups):
        return 0
    whole: int = -(-request.num_tokens // scheduler.block_size)
    return max(0, whole - min(map(len, groups)))


def observe_vllm(scheduler: Vllm, arrivals: Arrivals | None = None, *, in_flight: int = 0) -> State:
    """Return the whole state of a vLLM scheduler, as a value that later steps do not change.

    Args:
        scheduler: any subclass of vLLM's `Scheduler`, between two calls.
        arrivals: numbers that stay the same from one look to the next; without it, the present order counts.
        in_flight: `schedule()` calls whose outputs have not come back; vLLM does not count them.
    """
    numbers = (arrivals or Arrivals()).number(scheduler.requests)
    views = {id: view_of(scheduler, request, numbers[id]) for id, request in scheduler.requests.items()}
    running = tuple(request.request_id for request in scheduler.running)
    rest = [request.request_id for request in waiting_requests(scheduler)]
    waiting = tuple(id for id in rest if id not in views or views[id].place is not Place.PARKED)
    parked = tuple(id for id in rest if id in views and views[id].place is Place.PARKED)
    # Ended, and its blocks stay until the connector has let go of them: no live request, but an owner.
    requests = {f"{id}#{view.arrival}" if view.place is Place.FINISHED else id: view for id, view in views.items()}
    held = {block for id in views for group in block_ids(scheduler, id) for block in group}
    by_running = {block for id in running if id in views for group in block_ids(scheduler, id) for block in group}
    for _, blocks in getattr(scheduler, "deferred_frees", ()):
        held.update(block.block_id for block in blocks)
    return State(
        requests=requests,
        running=running,
        waiting=waiting,
        parked=parked,
        free=scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        promised=sum(view.reserved for view in views.values()),
        saturated=bool(getattr(scheduler, "prefill_capacity_bound", False)),
        num_running=len(running),
        num_loading=len(parked) + sum(1 for view in views.values() if view.place is Place.FINISHED),
        # vLLM gives a slot to who runs, not to who loads.
        num_slots=len(running),
        held=len(held),
        held_by_running=len(by_running),
        in_flight=in_flight,
    )


# --- The step --------------------------------------------------------------------------------------------------------


def holds(scheduler: Vllm, throttle: bool) -> bool:
    """Whether the step about to be scheduled will defer prefills, by vLLM's own rule; ask before `schedule()`."""
    if getattr(scheduler, "prefill_capacity_bound", False):
        return False
    return (throttle or local_hold(scheduler)) and any(not request.is_prefill_chunk for request in scheduler.running)


def chunks(scheduler: Vllm) -> frozenset[str]:
    """Return those that run and that a hold passes over, by vLLM's own mark; ask before `schedule()`.

    The mark also stands on a prefill with a single token left, which is a decode by our words.
    """
    return frozenset([request.request_id for request in scheduler.running if request.is_prefill_chunk])


def local_hold(scheduler: Vllm) -> bool:
    """Whether the scheduler's own cadence (0.33.0, for a rank on its own) throttles the step about to come."""
    interval: int = getattr(scheduler, "local_prefill_interval", 1)
    return interval > 1 and bool(scheduler.num_executed_steps + 1 - scheduler.last_prefill_step < interval)


def step_of(
    output: Vllm,
    before: State,
    after: State,
    config: Config,
    *,
    index: int,
    throttle: bool,
    hold: bool,
    paused: str | None = None,
    chunks: Collection[str] | None = None,
) -> Step:
    """Return what one `schedule()` call decided.

    Args:
        output: the `SchedulerOutput` that it returned.
        before: the whole state before the call, or a partial one: every request that ran, and whoever else stands out.
        after: the same after it.
        config: `config_of` the scheduler.
        index: number of the call, from 0.
        throttle: its argument; or whether the scheduler's own cadence held, where it keeps one.
        hold: what `holds` said before it.
        paused: what `paused` said before it.
        chunks: what `chunks` said before it; None: those with more than one token of local work.
    """
    step = Step(index, throttle, hold=hold, open=paused is None, saturated=after.saturated)
    step.scheduled = dict(output.num_scheduled_tokens)
    step.drafts = {id: len(drafts) for id, drafts in output.scheduled_spec_decode_tokens.items() if drafts}
    step.budget = config.max_num_batched_tokens - sum(step.scheduled.values())
    step.evictions = list(_evictions(step, before, after, config))
    for id, request in before.requests.items():
        if request.place is Place.RUNNING or id not in after.requests:
            continue
        if after.requests[id].place is Place.RUNNING:
            step.admitted.append(id)
            if request.num_blocks > 0:
                step.resumed.append(id)
        elif after.requests[id].place is Place.PARKED and request.place is Place.WAITING:
            step.loading.append(id)
    step.admitted.sort(key=list(step.scheduled).index)
    if hold and paused != "all":
        step.held = list(_held(step, before, after, config, chunks))
    step.prefill = any(_prefills(step, after.requests[id]) for id in step.scheduled if id in after.requests)
    step.wrote_flag = step.offers_admission or before.saturated != after.saturated
    return step


def _evictions(step: Step, before: State, after: State, config: Config) -> Iterator[Eviction]:
    """Yield who ran and waits now, for the best of those that got blocks."""
    victims = [
        id
        for id in before.running
        if id in after.requests and id in before.requests and after.requests[id].place is Place.WAITING
    ]
    if not victims:
        return
    best: View | None = None
    for id in before.running:
        was, now = before.requests.get(id), after.requests.get(id)
        grew = was is not None and now is not None and id in step.scheduled and now.num_blocks > was.num_blocks
        if was is not None and grew and (best is None or better(config, was, best)):
            best = was
    for id in victims:
        yield Eviction(id, id if best is None else best.id, before.requests[id].num_blocks)


def _held(step: Step, before: State, after: State, config: Config, chunks: Collection[str] | None) -> Iterator[str]:
    """Yield the chunks that a hold passed over, and the waiting request at which it ended the scan."""
    evicted = {victim for victim, _, _ in step.evictions}
    for id in before.running:
        request = before.requests.get(id)
        if request is None or id in step.scheduled or id in evicted:
            continue
        if id in chunks if chunks is not None else not is_decode(local_work(request)):
            yield id
    if evicted or not step.open or step.budget <= 0 or after.num_slots >= config.max_num_seqs:
        return
    for id in before.waiting:
        request = before.requests.get(id)
        if request is None or request.eligible_at > step.index or id not in after.requests:
            continue
        if after.requests[id].place is Place.WAITING:
            if not is_decode(local_work(request)):
                yield id
            return


def _prefills(step: Step, now: View) -> bool:
    """Whether a scheduled request had more than one token of local work."""
    scheduled = step.scheduled[now.id] - step.drafts.get(now.id, 0)
    left = max(0, now.num_tokens - now.num_computed)
    return not is_decode(scheduled + left)


def facts_of(config: Config, before: State, step: Step, after: State) -> Facts:
    """Return a step with the states around it, the offers that its loads took filled in beforehand."""
    if step.loading:
        requests = dict(before.requests)
        for id in step.loading:
            requests[id] = requests[id]._replace(remote_tokens=max(1, after.requests[id].external))
        before = State(**{name: getattr(before, name) for name in State.__slots__} | {"requests": requests})
    return Facts(config, before, step, after)
