"""Words that several predicates use."""

from collections.abc import Iterator

from onbeat_spec.config import Config
from onbeat_spec.policy import is_decode, local_work, runnable
from onbeat_spec.records import State, View


def decodes(state: State, now: int) -> Iterator[View]:
    """Yield the running decodes that can run in step `now`."""
    for id in state.running:
        request = state.requests[id]
        if is_decode(local_work(request)) and runnable(request, now):
            yield request


def better(config: Config, one: View, other: View) -> bool:
    """Whether `one` is served before `other`: by priority, if that counts, then by age."""
    if config.scheduling == "priority" and one.priority != other.priority:
        return one.priority < other.priority
    return one.arrival < other.arrival
