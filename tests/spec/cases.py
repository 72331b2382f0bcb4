"""Cases for predicates: an invariant, a scope, what the predicate is called with, and what it says (None: it holds)."""

from typing import Any

from onbeat_spec.config import Config
from onbeat_spec.records import Eviction, Facts, State
from tests.spec.builders import CONFIG, chunk, decode, facts, state

CACHING = Config(block_size=4, num_blocks=10, enable_prefix_caching=True)
PRIORITY = Config(block_size=4, num_blocks=10, scheduling="priority")

Case = tuple[str, str, tuple[Any, ...], str | None]
CASES: list[tuple[str, Case]] = []


def holds(about: str, invariant: str, scope: str, *arguments: object) -> None:
    CASES.append((f"{invariant}, {scope}: {about}", (invariant, scope, arguments, None)))


def fails(about: str, invariant: str, scope: str, *arguments: object, says: str) -> None:
    CASES.append((f"{invariant}, {scope}: {about}", (invariant, scope, arguments, says)))


def in_state(invariant: str, about: str, seen: State, says: str | None = None, config: Config = CONFIG) -> None:
    if says is None:
        holds(about, invariant, "state", config, seen)
    else:
        fails(about, invariant, "state", config, seen, says=says)


def in_step(invariant: str, about: str, seen: Facts, says: str | None = None) -> None:
    if says is None:
        holds(about, invariant, "step", seen)
    else:
        fails(about, invariant, "step", seen, says=says)


def in_runs(
    invariant: str,
    about: str,
    before: State,
    throttled: dict[str, Any],
    without: dict[str, Any],
    *,
    says: str | None = None,
    after: State | None = None,
) -> None:
    """`after` is the state after the step without the throttle."""
    runs = facts(before, throttle=True, **throttled), facts(before, after, **without)
    if says is None:
        holds(about, invariant, "runs", *runs)
    else:
        fails(about, invariant, "runs", *runs, says=says)


def gave(**tokens: int) -> dict[str, Any]:
    return {"scheduled": tokens}


def let_in(id: str, given: int = 8) -> dict[str, Any]:
    return {"admitted": [id], "scheduled": {id: given}}


AB = state(decode("a"), chunk("b"))
FLAGGED = state(decode("a"), chunk("b"), saturated=True)
GONE = [Eviction("b", "a", 1)]
