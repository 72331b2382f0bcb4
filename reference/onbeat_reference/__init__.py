"""One rank's scheduler and KV block pool, obeying `onbeat_spec`."""

from onbeat_reference.blocks import BlockPool
from onbeat_reference.lifecycle import Outputs
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import FinishReason, Request
from onbeat_reference.scheduler import Scheduler

__all__ = ["BlockPool", "CountingPool", "FinishReason", "Outputs", "Request", "Scheduler"]
