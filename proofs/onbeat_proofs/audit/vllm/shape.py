"""What of a vLLM scheduler's state its future depends on, without the names: see `onbeat_proofs.audit.fingerprint`.

For vLLM's own classes that is known, and listed here. What a derived class keeps beside it is taken as it is, names
included, so that two states count as one only if those attributes are equal too.
"""

import pickle
from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

from onbeat_proofs.audit.vllm import library
from onbeat_reference.observe_vllm import block_ids
from onbeat_reference.schedulable import Schedulable

_QUEUES = ("kv_holding_waiting", "skipped_waiting", "waiting", "running")
_SETS = ("finished_recving_kv_req_ids", "failed_recving_kv_req_ids")
_COUNTS = ("num_stale_output_tokens", "drop_stale_output", "num_in_flight_tokens", "async_tokens_to_discard")


class Facade(Schedulable, Protocol):
    """A scheduler of vLLM's behind the interface of the reference."""

    real: Any


@cache
def _own(base: Any) -> frozenset[str]:
    """The attributes that vLLM's own class has."""
    return frozenset(vars(library.harness().make_scheduler(base)))


@cache
def own_base(cls: Any) -> Any:
    """Return the nearest class of vLLM's own that a class derives from, or is."""
    return next((base for base in cls.__mro__ if base.__module__.partition(".")[0] == "vllm"), cls)


def shape(scheduler: Facade, names: Mapping[str, int]) -> tuple[Any, ...]:
    """Return the state as nested tuples and lists of plain values.

    Args:
        scheduler: the facade.
        names: a number for each request that vLLM knows, in the order of their arrival.

    Raises:
        ValueError: the class keeps something that cannot be compared.
    """
    real = scheduler.real
    cached = scheduler.config.enable_prefix_caching
    requests = {**scheduler.requests, **{request.id: request for request in scheduler.orphans}}
    return (
        [_request(real, real.requests[id], request, cached) for id, request in requests.items() if id in real.requests],
        [[names[item.request_id] for item in getattr(real, name)] for name in _QUEUES if hasattr(real, name)],
        [sorted(names[id] for id in getattr(real, name)) for name in _SETS],
        sorted(names[item.request_id] for item in getattr(real, "deferred_waiting", ())),
        [(fence - real.processed_step_seq, len(blocks)) for fence, blocks in real.deferred_frees],
        sorted(names[id] for id in getattr(real, "deferred_loads", ())),
        getattr(real, "sched_step_seq", 0) - getattr(real, "processed_step_seq", 0),
        scheduler.saturated,
        scheduler.paused,
        scheduler.pool.free,
        _cadence(real),
        _blocks(real) if cached else None,
        _extras(real, requests),
    )


def _request(real: Any, item: Any, request: Any, cached: bool) -> tuple[Any, ...]:
    return (
        item.status.name,
        (item.num_tokens, item.num_prompt_tokens, item.max_tokens, item.num_computed_tokens, item.priority),
        (item.num_output_placeholders, item.num_preemptions > 0, bool(item.is_prefill_chunk)),
        [int(getattr(item, name, 0)) for name in _COUNTS],
        (request.external, request.remote_tokens, request.sync_load, request.num_drafts, request.num_placeholders),
        (request.arrival, [list(group) for group in block_ids(real, item.request_id)])
        if cached
        else request.num_blocks,
    )


def _cadence(real: Any) -> int:
    """Executed steps since the last one that carried prefill, as far as they count."""
    interval = getattr(real, "local_prefill_interval", 1)
    return min(real.num_executed_steps - real.last_prefill_step, interval) if interval > 1 else 0


def _blocks(real: Any) -> list[Any]:
    pool = real.kv_cache_manager.block_pool
    free = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    return [free, [(block.ref_cnt, repr(block.block_hash)) for block in pool.blocks]]


def _extras(real: Any, ids: Mapping[str, Any]) -> bytes:
    """Return what a derived class keeps beside what vLLM's own keeps."""
    cls: Any = type(real)
    base = own_base(cls)
    if base is cls:
        return b""
    kept = {name: value for name, value in vars(real).items() if name not in _own(base)}
    requests = [real.requests[id] for id in ids if id in real.requests]
    on_requests = [
        {name: value for name, value in vars(request).items() if name not in _of_requests(_class(request))}
        for request in requests
    ]
    if not kept and not any(on_requests):
        return b""
    try:
        return pickle.dumps((list(ids), kept, on_requests), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ValueError(f"{type(real).__name__} keeps what cannot be compared: {error}") from None


def _class(value: Any) -> Any:
    return type(value)


@cache
def _of_requests(cls: Any) -> frozenset[str]:
    request = library.harness().make_request("x", [1], 1, arrival=0)
    return frozenset(vars(request)) if type(request) is cls else frozenset()
