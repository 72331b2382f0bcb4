"""What a step may do: the policy text, the invariants, the monitor. Depends on nothing."""

from onbeat_spec.cadence import LocalClock, PhaseClock, clock_for
from onbeat_spec.catalogue import CATALOGUE, Invariant
from onbeat_spec.config import Config
from onbeat_spec.errors import OnbeatError
from onbeat_spec.monitor import Monitor
from onbeat_spec.policy import POLICIES, Policy
from onbeat_spec.records import Eviction, Facts, Place, Request, State, Step, View, Violation, view

__all__ = [
    "CATALOGUE",
    "POLICIES",
    "Config",
    "Eviction",
    "Facts",
    "Invariant",
    "LocalClock",
    "Monitor",
    "OnbeatError",
    "PhaseClock",
    "Place",
    "Policy",
    "Request",
    "State",
    "Step",
    "View",
    "Violation",
    "clock_for",
    "view",
]
