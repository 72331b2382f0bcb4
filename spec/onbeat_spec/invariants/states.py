"""Predicates over one state."""

from onbeat_spec.catalogue import Verdict, predicate
from onbeat_spec.config import Config
from onbeat_spec.policy import is_decode, local_work
from onbeat_spec.records import Place, State


@predicate("slots", "state")
def slots(config: Config, state: State) -> Verdict:
    """Count who holds a slot."""
    if state.num_slots > config.max_num_seqs:
        return (
            f"{state.num_slots} requests hold a slot ({state.num_running} run); max_num_seqs is {config.max_num_seqs}"
        )
    return None


@predicate("blocks-conserved", "state")
def blocks_conserved(config: Config, state: State) -> Verdict:
    """Add up the blocks."""
    if state.held >= 0 and state.free + state.held != config.num_blocks:
        return f"{state.free} free and {state.held} held blocks do not make {config.num_blocks}"
    if state.held == 0 and state.promised != 0:
        return f"{state.promised} blocks are promised though nobody holds any"
    return None


def growth(config: Config, state: State) -> int:
    """Most blocks by which running requests can have outgrown what they were promised when admitted.

    A chunk stays within its promise. With shared blocks it is not known whose growth a block is.
    """
    if config.enable_prefix_caching:
        return state.held_by_running - state.num_running
    running = [state.requests[id] for id in state.running]
    return sum(request.num_blocks - 1 for request in running if is_decode(local_work(request)))


@predicate("full-sequence-fits", "state")
def promises_are_covered(config: Config, state: State) -> Verdict:
    """What is promised and not free has been taken by decodes, which grow from their first block on."""
    grown = growth(config, state)
    if state.held >= 0 and state.promised > state.free + grown:
        return f"{state.promised} blocks are promised, {state.free} free, and decodes grew by {grown} at most"
    return None


@predicate("one-place", "state")
def one_place(config: Config, state: State) -> Verdict:
    """Look every live request up in the three lists."""
    places: dict[str, Place] = {}
    for place, ids in (
        (Place.RUNNING, state.running),
        (Place.WAITING, state.waiting),
        (Place.PARKED, state.parked),
    ):
        for id in ids:
            if id in places:
                return f"{id} stands in {places[id].value} and in {place.value}"
            places[id] = place
    for id, request in state.requests.items():
        if places.pop(id, Place.FINISHED) is not request.place:
            return f"{id} is {request.place.value} and does not stand there"
    return f"{', '.join(places)} stand in a list and are not live" if places else None


@predicate("exactly-once", "state")
def placeholders_balance(config: Config, state: State) -> Verdict:
    """No token is awaited twice, or awaited from nobody."""
    for id, request in state.requests.items():
        if request.num_placeholders < 0 or (state.in_flight == 0 and request.num_placeholders != 0):
            return f"{id} awaits {request.num_placeholders} tokens with {state.in_flight} steps in flight"
        if request.num_computed > request.num_tokens + request.num_placeholders:
            return f"{id} has {request.num_computed} tokens computed of {request.num_tokens} known"
    return None
