"""Records what a vLLM scheduler does, for `onbeat check-trace`: `class MyScheduler(VllmRecorder, Scheduler)`.

As a scheduler of its own: `vllm serve --scheduler-cls onbeat_engine.vllm.recorder.RecordedScheduler` (or
`RecordedAsyncScheduler`). vLLM constructs the class, so environment variables say where the trace goes:
ONBEAT_TRACE_DIR, and those of `onbeat_reference.trace_writer`. Without ONBEAT_TRACE_DIR nothing is recorded.

Nothing of vLLM is imported here before one of the two classes is asked for. Recording changes no decision, and no
error of it is ever raised into the scheduler: what fails is counted, and said once in the log.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from onbeat_engine.vllm.trace import VllmTraceRecorder
from onbeat_reference.observe_vllm import paused
from onbeat_reference.trace_writer import TraceOptions
from onbeat_spec.records import LockStep, View
from onbeat_spec.trace import Crashed, Idle, PauseChanged, PauseMode

log = logging.getLogger("onbeat.trace")


class VllmRecorder:
    """Stands before a vLLM scheduler class and records it, in every release from 0.24.0 on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.onbeat_recorder: VllmTraceRecorder | None = None
        try:
            options = TraceOptions.from_environment()
            if options is None:
                log.warning("ONBEAT_TRACE_DIR is not set; %s records nothing", type(self).__qualname__)
            else:
                self.onbeat_recorder = VllmTraceRecorder(self, options)
        except Exception as error:  # whatever this scheduler lacks, it schedules
            log.error("%s cannot be recorded: %s: %s", type(self).__qualname__, type(error).__name__, error)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule, and record the step."""
        throttle = bool(args[0] if args else kwargs.get("throttle_prefills", False))
        self._onbeat(lambda recorder: recorder.before(throttle))
        try:
            output = super().schedule(*args, **kwargs)  # type: ignore[misc]  # of the class behind this one
        except Exception as error:
            self._onbeat_crashed("schedule", error)
            raise
        self._onbeat(lambda recorder: recorder.after(throttle, output))
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Take outputs, and record what was delivered."""
        try:
            results = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]  # as above
        except Exception as error:
            self._onbeat_crashed("update_from_output", error)
            raise
        self._onbeat(lambda recorder: recorder.updated(scheduler_output, results))
        return results

    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Add a request, and record that; a further part of a session is not another request."""
        known = request.request_id in self.requests  # type: ignore[attr-defined]  # of the class behind this one
        result = super().add_request(request, *args, **kwargs)  # type: ignore[misc]  # as above
        if not known:
            self._onbeat(lambda recorder: recorder.accepted(request))
        return result

    def finish_requests(self, request_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """End requests, and record which were there to be ended."""
        requests = self.requests  # type: ignore[attr-defined]  # of the class behind this one
        ids = [request_ids] if isinstance(request_ids, str) else list(requests if request_ids is None else request_ids)
        live = {id for id in ids if id in requests and not requests[id].is_finished()}
        result = super().finish_requests(request_ids, *args, **kwargs)  # type: ignore[misc]  # as above
        self._onbeat(lambda recorder: recorder.ended(ids, live))
        return result

    def set_pause_state(self, *args: Any, **kwargs: Any) -> Any:
        """Pause or resume, and record it."""
        result = super().set_pause_state(*args, **kwargs)  # type: ignore[misc]  # as above
        mode: PauseMode | None = {"new": "new", "all": "all"}.get(paused(self) or "")  # type: ignore[assignment]  # these two
        self._onbeat(lambda recorder: recorder.writer.write(PauseChanged(mode)))
        return result

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Preempt, and remember how the victim stood: nothing tells it afterwards."""
        held: list[tuple[View, int]] = []
        self._onbeat(
            lambda recorder: held.append(
                (recorder.view(request), self.kv_cache_manager.block_pool.get_num_free_blocks())  # type: ignore[attr-defined]
            )
        )
        result = super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]  # as above
        if held:
            self._onbeat(lambda recorder: recorder.preempted(request, *held[0]))
        return result

    def onbeat_lock_step(self, lock: LockStep, *, idle: bool = False) -> None:
        """Tell which lock step of the group comes next; `idle`: it is one without a call of `schedule()`."""

        def note(recorder: VllmTraceRecorder) -> None:
            if idle:
                recorder.writer.write(Idle(lock))
            else:
                recorder.lock = lock

        self._onbeat(note)

    def _onbeat(self, record: Callable[[VllmTraceRecorder], object]) -> None:
        """Record something; nothing that goes wrong here reaches the scheduler."""
        recorder = getattr(self, "onbeat_recorder", None)
        if recorder is None:
            return
        try:
            record(recorder)
        except Exception as error:
            recorder.errors += 1
            recorder.writer.lost += 1
            if recorder.errors == 1:
                log.exception("a step could not be recorded, and scheduling goes on: %s", error)

    def _onbeat_crashed(self, call: str, error: Exception) -> None:
        def crashed(recorder: VllmTraceRecorder) -> None:
            recorder.writer.write(Crashed(f"{call}: {type(error).__name__}: {error}"))
            recorder.writer.flush()

        self._onbeat(crashed)


_BASES = {
    "RecordedScheduler": ("vllm.v1.core.sched.scheduler", "Scheduler"),
    "RecordedAsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
}


def __getattr__(name: str) -> type:
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = _BASES[name]
    kind = type(name, (VllmRecorder, getattr(import_module(module), base)), {"__module__": __name__})
    globals()[name] = kind
    return kind
