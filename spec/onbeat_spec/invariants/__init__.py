"""The invariants of one rank, and of a group. Those over a history are methods of `onbeat_spec.monitor.Monitor`."""

from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.invariants import (  # noqa: F401  (register themselves, after the entries)
    entries,
    group,
    runs,
    states,
    steps,
)

STATE_PREDICATES = [(entry, entry.state) for entry in CATALOGUE.values() if entry.state is not None]
STEP_PREDICATES = [(entry, entry.step) for entry in CATALOGUE.values() if entry.step is not None]
RUNS_PREDICATES = [(entry, entry.runs) for entry in CATALOGUE.values() if entry.runs is not None]
GROUP_PREDICATES = [(entry, entry.group) for entry in GROUP_CATALOGUE.values() if entry.group is not None]

__all__ = ["GROUP_PREDICATES", "RUNS_PREDICATES", "STATE_PREDICATES", "STEP_PREDICATES"]
