"""Words that several predicates use."""

from collections.abc import Iterator

from onbeat_spec.config import Config
from onbeat_spec.policy import is_decode, local_work, runnable
from onbeat_spec.records import Place, State, View


def decodes(state: State, now: int) -> Iterator[View]:
    """Yield the running decodes that can run in step `now`."""
    for id in state.running:
        request = state.requests[id]
        if is_decode(local_work(request)) and runnable(request, now):
            yield request


def called(request: View) -> str:
    """Name a request in a message, with what it is."""
    if request.place is Place.RUNNING:
        return f"{'decode' if is_decode(local_work(request)) else 'chunk'} {request.id}"
    return f"remote resume {request.id}" if request.external > 0 else f"{request.place.value} {request.id}"


def better(config: Config, one: View, other: View) -> bool:
    """Whether `one` is served before `other`: by priority, if that counts, then by age."""
    if config.scheduling == "priority" and one.priority != other.priority:
        return one.priority < other.priority
    return one.arrival < other.arrival
