"""The invariants: each with its statement, predicates, premise and witness in one place.

To add one, write it into the module that it belongs to. Every check, table and report reads it from there.
"""

from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE, enter
from onbeat_spec.invariants import (
    bounds,
    capacity,
    effect,
    flag,
    group,
    group_events,  # noqa: F401 - it adds predicates to the invariants of `group`
    holds,
    lifecycle,
    lists,
    memory,
)

enter(CATALOGUE, (holds, effect, flag, bounds, capacity, lists, memory, lifecycle))
enter(GROUP_CATALOGUE, (group,))

STATE_PREDICATES = [(entry, entry.state) for entry in CATALOGUE.values() if entry.state is not None]
STEP_PREDICATES = [(entry, entry.step) for entry in CATALOGUE.values() if entry.step is not None]
RUNS_PREDICATES = [(entry, entry.runs) for entry in CATALOGUE.values() if entry.runs is not None]
HISTORIES = [(entry, entry.history) for entry in CATALOGUE.values() if isinstance(entry.history, type)]
GROUP_PREDICATES = [(entry, entry.group) for entry in GROUP_CATALOGUE.values() if entry.group is not None]
CALL_PREDICATES = [(entry, entry.call) for entry in GROUP_CATALOGUE.values() if entry.call is not None]
READ_PREDICATES = [(entry, entry.read) for entry in GROUP_CATALOGUE.values() if entry.read is not None]

__all__ = [
    "CALL_PREDICATES",
    "GROUP_PREDICATES",
    "HISTORIES",
    "READ_PREDICATES",
    "RUNS_PREDICATES",
    "STATE_PREDICATES",
    "STEP_PREDICATES",
]
