"""Hand-made requests, states and steps. A block has 4 tokens; a request is as old as the letter that names it."""

from typing import Any

from onbeat_spec.config import Config
from onbeat_spec.records import Facts, Place, State, Step, View

CONFIG = Config(block_size=4, num_blocks=10, max_num_batched_tokens=16, max_num_seqs=3, prefill_schedule_interval=4)


def decode(id: str, **changes: Any) -> View:
    """A running request with one token of local work: 4 of 5 tokens computed, in one block."""
    known = View(
        id=id,
        priority=0,
        arrival=ord(id[0]) - ord("a"),
        limit=100,
        num_prompt=4,
        num_tokens=5,
        num_placeholders=0,
        num_computed=4,
        num_drafts=0,
        external=0,
        remote_tokens=0,
        sync_load=False,
        num_blocks=1,
        reserved=0,
        eligible_at=0,
        place=Place.RUNNING,
    )
    return known._replace(**changes)


def chunk(id: str, **changes: Any) -> View:
    """A running request with eight tokens of local work: 4 of 12 computed, one block of three taken."""
    return decode(id, **{"num_prompt": 12, "num_tokens": 12, "reserved": 2, **changes})


def fresh(id: str, **changes: Any) -> View:
    """A waiting request of 8 tokens, of which nothing is at hand."""
    blank = {"num_prompt": 8, "num_tokens": 8, "num_computed": 0, "num_blocks": 0, "place": Place.WAITING}
    return decode(id, **{**blank, **changes})


def loading(id: str, **changes: Any) -> View:
    """A request of 8 tokens that loads the first 4 from a remote store."""
    return fresh(id, **{"external": 4, "num_blocks": 1, "reserved": 1, "place": Place.PARKED, **changes})


def landed(id: str, **changes: Any) -> View:
    """The same with its load at hand: a remote resume with four tokens of local work."""
    return loading(id, **{"num_computed": 4, "place": Place.WAITING, **changes})


def state(*views: View, **changes: Any) -> State:
    """The whole state made of these requests; `changes` falsify its sums and lists."""

    def ids(place: Place) -> tuple[str, ...]:
        return tuple(view.id for view in views if view.place is place)

    held = sum(view.num_blocks for view in views)
    facts = {
        "requests": {view.id: view for view in views},
        "running": ids(Place.RUNNING),
        "waiting": ids(Place.WAITING),
        "parked": ids(Place.PARKED),
        "free": CONFIG.num_blocks - held,
        "promised": sum(view.reserved for view in views),
        "saturated": False,
        "num_running": len(ids(Place.RUNNING)),
        "num_loading": len(ids(Place.PARKED)),
        "num_slots": sum(1 for view in views if view.num_blocks > 0),
        "held": held,
        "held_by_running": sum(view.num_blocks for view in views if view.place is Place.RUNNING),
        "in_flight": 0,
    }
    return State(**{**facts, **changes})


def partial(*views: View, **changes: Any) -> State:
    """The same as a live monitor builds it: some of the requests, and blocks uncounted."""
    return state(*views, **{"held": -1, "held_by_running": -1, **changes})


def facts(before: State, after: State | None = None, config: Config = CONFIG, **step: Any) -> Facts:
    """Step 0, unless `step` says otherwise, between two states; without `after` it left everything as it was."""
    return Facts(config, before, Step(**{"index": 0, "throttle": False, **step}), before if after is None else after)
