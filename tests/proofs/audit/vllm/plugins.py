"""Subclasses of vLLM's schedulers, each with a fault that plugins really had, or could have."""

import os
import sys
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class Forwards(Scheduler):  # type: ignore[misc]  # vLLM has no types where this is checked
    """Right: whatever comes is handed on (B26)."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        return super().schedule(*args, **kwargs)


class IgnoresTheFlag(Scheduler):  # type: ignore[misc]
    """The throttle never gets as far as the policy."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(False)


class AlwaysThrottles(Scheduler):  # type: ignore[misc]
    """The throttle is on for good."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return super().schedule(True)


class HoldsDecodes(Scheduler):  # type: ignore[misc]
    """A throttled step leaves out the youngest decode."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        left_out = self.running[-1:] if throttle_prefills and len(self.running) > 1 else []
        for request in left_out:
            self.running.remove(request)
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.running.extend(left_out)


class ForgetsTheFlag(Scheduler):  # type: ignore[misc]
    """The saturation flag is cleared by every step."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        output = super().schedule(throttle_prefills)
        self.prefill_capacity_bound = False
        return output


class LosesRequests(Scheduler):  # type: ignore[misc]
    """A preempted request is put nowhere (B56)."""

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._preempt_request(request, *args, **kwargs)
        self.waiting.remove_request(request)
        return result


class LeaksBlocks(Scheduler):  # type: ignore[misc]
    """What an aborted request held stays taken."""

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        pool = self.kv_cache_manager.block_pool
        if pool.get_num_free_blocks():
            pool.get_new_blocks(1)
        return super().finish_requests(request_ids, finished_status)


class TooMany(Scheduler):  # type: ignore[misc]
    """More requests run than may (B34)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_num_running_reqs += 1
        if hasattr(self, "max_num_active_reqs"):
            self.max_num_active_reqs += 1


class Raises(Scheduler):  # type: ignore[misc]
    """A second decode is too much for it."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if len(self.running) > 1:
            raise RuntimeError("two at a time")
        return super().schedule(throttle_prefills)


class Hangs(Scheduler):  # type: ignore[misc]
    """A second decode keeps it busy for ever."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        while len(self.running) > 1:
            pass
        return super().schedule(throttle_prefills)


class Exits(Scheduler):  # type: ignore[misc]
    """A second decode ends the process."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if len(self.running) > 1:
            os._exit(3)
        return super().schedule(throttle_prefills)


class ExitsPolitely(Scheduler):  # type: ignore[misc]
    """The same by an exception."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if len(self.running) > 1:
            sys.exit(3)
        return super().schedule(throttle_prefills)


class Prints(Scheduler):  # type: ignore[misc]
    """A second decode is news."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if len(self.running) > 1:
            print("two at a time")
        return super().schedule(throttle_prefills)


class SkipsDecodes(Scheduler):  # type: ignore[misc]
    """Leaves the decodes out of open steps in which somebody waits."""

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if throttle_prefills or not self.waiting:
            return super().schedule(throttle_prefills)
        me: Any = self
        kept, me.running = me.running, []
        output = super().schedule(throttle_prefills)
        me.running = kept + me.running
        return output
