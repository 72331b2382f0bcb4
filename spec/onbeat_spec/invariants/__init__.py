"""The invariants of one rank. Those over a history are methods of `onbeat_spec.monitor.Monitor`."""

from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.invariants import (  # noqa: F401  (register themselves, after the entries)
    entries,
    runs,
    states,
    steps,
)

STATE_PREDICATES = [(entry, entry.state) for entry in CATALOGUE.values() if entry.state is not None]
STEP_PREDICATES = [(entry, entry.step) for entry in CATALOGUE.values() if entry.step is not None]
RUNS_PREDICATES = [(entry, entry.runs) for entry in CATALOGUE.values() if entry.runs is not None]

__all__ = ["RUNS_PREDICATES", "STATE_PREDICATES", "STEP_PREDICATES"]
