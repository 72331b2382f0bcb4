"""A package of vLLM's shape, with a scheduler of our own in it: what the static audit needs of the real one."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm.static.compare import misfits_of_vllm

FILES = {
    "__init__.py": '__version__ = "0.33.0"\n',
    "config/__init__.py": "",
    "config/scheduler.py": """
class SchedulerConfig:
    async_scheduling: bool | None = None
""",
    "v1/__init__.py": "",
    "v1/request.py": """
class Request:
    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.num_computed_tokens = 0

    @property
    def num_tokens(self) -> int:
        return 1
""",
    "v1/core/__init__.py": "",
    "v1/core/pool.py": """
class Pool:
    def find(self, request, most=None) -> tuple[list, int, int]:
        return [], 0, 0
""",
    "v1/core/sched/__init__.py": "",
    "v1/core/sched/interface.py": """
from abc import ABC, abstractmethod


class SchedulerInterface(ABC):
    @abstractmethod
    def __init__(self, vllm_config, kv_cache_config, structured_output_manager, block_size, hash_block_size,
                 include_finished_set=False, log_stats=False) -> None:
        raise NotImplementedError

    @abstractmethod
    def schedule(self, throttle_prefills: bool = False) -> "SchedulerOutput":
        raise NotImplementedError

    @abstractmethod
    def add_request(self, request) -> None:
        raise NotImplementedError

    def has_unfinished_requests(self) -> bool:
        return bool(self.get_num_unfinished_requests())

    @abstractmethod
    def get_num_unfinished_requests(self) -> int:
        raise NotImplementedError
""",
    "v1/core/sched/scheduler.py": """
from vllm.config.scheduler import SchedulerConfig
from vllm.v1.core.pool import Pool
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.request import Request


def remove_all(items: list, gone: set) -> list:
    return [item for item in items if item not in gone]


class Scheduler(SchedulerInterface):
    def __init__(self, vllm_config, kv_cache_config, structured_output_manager, block_size, hash_block_size=None,
                 include_finished_set=False, log_stats=False) -> None:
        self.pool = Pool()
        self.waiting = []
        self.running = []
        self.finished = set()
        self.prefill_capacity_bound = False
        self.local_prefill_interval = 1

    def schedule(self, throttle_prefills: bool = False) -> dict:
        budget = 64
        scheduled = {}
        defer_prefills = throttle_prefills and not self.prefill_capacity_bound
        if self.local_prefill_interval > 1:
            defer_prefills = True
        for request in self.running:
            if defer_prefills and request.num_tokens > 1:
                continue
            scheduled[request.request_id] = 1
            budget -= 1
        while self.waiting and budget > 0:
            request = self.waiting[0]
            if not self._ready(request):
                break
            blocks, num_computed_tokens, shared = self.pool.find(request)
            if defer_prefills and num_computed_tokens < request.num_tokens - 1:
                break
            self.waiting.pop(0)
            self.running.append(request)
            scheduled[request.request_id] = request.num_tokens
            budget -= request.num_tokens
        if not defer_prefills:
            self.prefill_capacity_bound = bool(self.waiting)
        return scheduled

    def update_from_output(self, scheduler_output, model_runner_output) -> dict[int, list]:
        done = {}
        for request in self.running:
            self._update_request_with_output(request, [1], is_stale=False)
            done.setdefault(0, []).append(request)
        return done

    def add_request(self, request: Request) -> None:
        self.waiting.append(request)

    def finish_requests(self, request_ids, finished_status) -> list[Request]:
        return []

    def get_num_unfinished_requests(self) -> int:
        return len(self.running) + len(self.waiting)

    def _ready(self, request: Request) -> bool:
        return request.request_id not in self.finished

    def _landed(self, request: Request) -> None:
        self.finished.discard(request.request_id)

    def _free_request(self, request: Request, delay: bool = False) -> tuple[dict | None, dict | None]:
        return None, None

    def _connector_finished(self, request: Request) -> dict | None:
        return {} if request in self.finished else None

    def _split(self, request: Request, tokens: int) -> int:
        return tokens

    def _update_request_with_output(self, request: Request, tokens, is_stale: bool = False) -> tuple[list, bool]:
        return tokens, False
""",
    "v1/core/sched/async_scheduler.py": """
from vllm.v1.core.sched.scheduler import Scheduler


class AsyncScheduler(Scheduler):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.placeholders = []
""",
}
IMPORTS = """
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import SchedulerInterface
from vllm.v1.core.sched.scheduler import Scheduler, remove_all
from vllm.v1.request import Request
"""
SCHEDULE = "def schedule(self, throttle_prefills=False):\n    "
"""How an override of schedule() begins."""
_numbers = count()


def misfits(cls: type) -> list[str]:
    """What the static audit says of a class."""
    return [str(misfit) for misfit in misfits_of_vllm(cls)]


def only(cls: type) -> Misfit:
    """The one thing that it says."""
    (misfit,) = misfits_of_vllm(cls)
    return misfit


class Fake:
    """The fake package, importable, and plugins beside it."""

    def __init__(self, folder: Path) -> None:
        """Write the package into a folder."""
        self.folder = folder
        for name, text in FILES.items():
            path = folder / "vllm" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def plugin(self, text: str, name: str = "Mine") -> type:
        """Return a class of a module with this text."""
        module = f"plugin_{next(_numbers)}"
        (self.folder / f"{module}.py").write_text(IMPORTS + text, encoding="utf-8")
        importlib.invalidate_caches()
        found: type = getattr(importlib.import_module(module), name)
        return found

    def scheduler(self, method: str, base: str = "AsyncScheduler") -> type:
        """Return a subclass with one method."""
        body = "\n".join(f"    {line}" for line in method.strip("\n").splitlines())
        return self.plugin(f"\n\nclass Mine({base}):\n{body}\n")


@contextmanager
def installed(folder: Path) -> Iterator[Fake]:
    """Make the fake importable as vllm, in place of a real one."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "vllm"}
    for name in kept:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        yield Fake(folder)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm" or name.startswith("plugin_")]:
            del sys.modules[name]
        sys.modules.update(kept)
