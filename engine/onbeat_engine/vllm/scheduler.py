"""The two scheduler classes. Importing this module imports vLLM."""

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from onbeat_engine.vllm.cadenced import Cadenced
from onbeat_engine.vllm.releases import release, require, require_hooks
from onbeat_engine.vllm.stock import OVERRIDDEN

require()
require_hooks(Scheduler, OVERRIDDEN)


class _Fitted(Cadenced):
    """Fitted to the installed release."""

    replay_is_subtracted = (release(vllm.__version__) or (0, 33)) >= (0, 33)


class OnbeatScheduler(_Fitted, Scheduler):  # type: ignore[misc]  # vLLM is not there to be type-checked: its classes are Any
    """vLLM's synchronous scheduler with the policy `onbeat`."""


class OnbeatAsyncScheduler(_Fitted, AsyncScheduler):  # type: ignore[misc]  # as above
    """vLLM's asynchronous scheduler with the policy `onbeat`."""
