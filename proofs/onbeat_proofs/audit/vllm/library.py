"""The installed vLLM: importing it quietly, and what copies of its schedulers may share."""

import logging
import sys
from concurrent.futures import Executor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from runpy import run_path
from threading import Lock, RLock, Thread
from typing import Any

from onbeat_proofs.foreign.branching import Memo, branch, learn, share
from onbeat_spec.errors import NotAScheduler

OLDEST, NEWEST = (0, 24), (0, 33)
"""Releases whose schedulers were driven: the throttle came with the first."""


@cache
def part(name: str) -> Any:
    """Import a module of vLLM, quietly.

    Args:
        name: below `vllm`, as `v1.request`; empty for `vllm` itself.

    Raises:
        NotAScheduler: vLLM is not installed, or has no such module.
    """
    full = f"vllm.{name}" if name else "vllm"
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    try:
        return import_module(full)
    except ImportError as error:
        raise NotAScheduler(
            f"{full} cannot be imported: {error}; run the audit in the environment of the vLLM that the class is for"
        ) from error


@cache
def harness() -> Any:
    """Import what builds schedulers; also makes copies of them cheap.

    Raises:
        NotAScheduler: vLLM is not installed, or not of a release whose schedulers are known.
    """
    version()
    module = import_module("onbeat_proofs.audit.vllm.harness")
    _share_constants()
    return module


@cache
def version() -> tuple[int, int]:
    """Return the installed vLLM's version, as (major, minor).

    Raises:
        NotAScheduler: vLLM cannot be imported, or is of a release whose schedulers are not known.
    """
    text = full_version()
    try:
        major, minor = (int(number) for number in text.split(".")[:2])
    except ValueError:
        raise NotAScheduler(f"vLLM calls its version {text!r}; install a release") from None
    if not OLDEST <= (major, minor) <= NEWEST:
        oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST, NEWEST))
        raise NotAScheduler(f"vLLM {text} is installed; its schedulers are known from {oldest} to {newest}")
    return major, minor


@cache
def full_version() -> str:
    """Return the installed vLLM's version as it calls itself, build suffix left out; vLLM is not imported for it.

    Raises:
        NotAScheduler: vLLM is not installed.
    """
    spec = find_spec("vllm") if sys.modules.get("vllm", ()) is not None else None
    if spec is None or not spec.submodule_search_locations:
        raise NotAScheduler("vLLM is not installed; run the audit in the environment of the vLLM that the class is for")
    file = Path(spec.submodule_search_locations[0], "_version.py")
    return str(run_path(str(file))["__version__"]).partition("+")[0] if file.is_file() else "unknown"


def is_asynchronous(cls: Any) -> bool:
    """Whether a class schedules steps ahead of their outputs: it derives from vLLM's `AsyncScheduler`."""
    return issubclass(cls, part("v1.core.sched.async_scheduler").AsyncScheduler)


def _share_constants() -> None:
    """Let copies of a scheduler share what it never changes: configurations, parameters, records of steps, outlets."""
    torch = import_module("torch")
    # Packages that derive from vLLM's schedulers bring threads of their own; no copy runs one.
    share(Thread, Executor, type(Lock()), type(RLock()))
    learn(SimpleQueue, _copy_queue)
    learn(part("v1.core.kv_cache_utils").KVCacheBlock, _copy_block)
    share(torch.dtype, torch.device, torch.Tensor)
    names = {
        "config": (
            *("VllmConfig", "ModelConfig", "SchedulerConfig", "CacheConfig", "ParallelConfig", "KVTransferConfig"),
            "ObservabilityConfig",
        ),
        "v1.kv_cache_interface": ("KVCacheConfig", "KVCacheSpec", "KVCacheGroupSpec"),
        "v1.structured_output": ("StructuredOutputManager",),
        "sampling_params": ("SamplingParams",),
        "v1.core.sched.output": ("SchedulerOutput",),
        "distributed.kv_events": ("EventPublisher",),
        "multimodal.registry": ("MultiModalRegistry",),
    }
    for module, classes in names.items():
        share(*(getattr(part(module), name) for name in classes if hasattr(part(module), name)))


def _copy_block(value: Any, memo: Memo) -> Any:
    """Copy a KV block and whatever it is linked with: the free list is too long to follow it by recursion."""
    cls, linked = type(value), [value]
    memo[id(value)] = object.__new__(cls)
    for block in linked:
        for end in (block.prev_free_block, block.next_free_block):
            if end is not None and id(end) not in memo:
                memo[id(end)] = object.__new__(cls)
                linked.append(end)
    for block in linked:
        new = memo[id(block)]
        for name in cls.__slots__:
            setattr(new, name, branch(getattr(block, name), memo))
    return memo[id(value)]


def _copy_queue(value: Any, memo: Memo) -> Any:
    """Copy a queue by taking everything out and putting it back."""
    items = [value.get_nowait() for _ in range(value.qsize())]
    new = memo[id(value)] = SimpleQueue[Any]()
    for item in items:
        value.put(item)
        new.put(branch(item, memo))
    return new
