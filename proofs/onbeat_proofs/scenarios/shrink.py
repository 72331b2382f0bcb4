"""Making a scenario small while it still shows the same thing.

Nothing here knows what the scenario shows: a search, a random history and a model of Z3 are shrunk alike. Each pass
tries changes that make a scenario simpler and keeps those after which it still fails; the passes are repeated until
none of them helps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from time import process_time
from typing import Any

from onbeat_proofs.scenarios.operations import Add, Check, Op, Repeat, Scenario, Schedule, flatten
from onbeat_spec.config import CONFIG_KEYS, Config
from onbeat_spec.errors import OnbeatError

Fails = Callable[[Scenario], bool]

_SIMPLE: Mapping[type[Op], Mapping[str, Any]] = {
    Add: {"priority": 0, "prefix": None, "remote_tokens": 0, "remote_mode": "async", "output": None},
    Schedule: {"budget": None, "accept": None},
}
"""Values that say least."""
_LEAST: Mapping[str, int] = {"prompt": 1, "max_tokens": 1, "remote_tokens": 1, "steps": 1, "from_block": 0, "times": 1}
"""Numbers of operations that may be made smaller, and how small."""
_NUMBERS = tuple(name for name in CONFIG_KEYS if type(getattr(Config(), name)) is int and name not in ("async_depth",))
_NAMES = "abcdefghijklmnopqrstuvwxyz"


def shrink(scenario: Scenario, still_fails: Fails, seconds: float = 5.0, plain: Config | None = None) -> Scenario:
    """Return a scenario to which no single change can be made that keeps it failing.

    Args:
        scenario: one that fails.
        still_fails: says whether a scenario fails in the same way. One that raises an `OnbeatError` does not.
        plain: the configuration that says least; by default the one with all defaults.
        seconds: after so long the smallest scenario so far is returned; it fails too.

    Raises:
        ValueError: `scenario` does not fail.
    """
    search = _Shrinking(scenario, still_fails, process_time() + seconds, plain or Config())
    if not search.fails(scenario):
        raise ValueError(f"{scenario.name}: it does not fail, so it cannot be made smaller")
    search.run()
    return search.best


class _Late(Exception):
    """Time is up."""


class _Shrinking:
    def __init__(self, scenario: Scenario, still_fails: Fails, deadline: float, plain: Config) -> None:
        self.best = scenario
        self.plain = plain
        self.still_fails = still_fails
        self.deadline = deadline
        self.tried: set[str] = set()

    def run(self) -> None:
        try:
            self.accept(replace(self.best, steps=tuple(_bare(self.best.steps))))
            while any([self.drop_steps(), self.drop_requests(), self.simplify_steps(), self.simplify_config()]):
                pass
            self.rename()
        except _Late:
            pass

    def fails(self, scenario: Scenario) -> bool:
        try:
            return self.still_fails(scenario)
        except OnbeatError:
            return False

    def accept(self, candidate: Scenario) -> bool:
        """Go on from a candidate if it still fails."""
        key = repr((candidate.config, candidate.steps))
        if key in self.tried:
            return False
        if process_time() > self.deadline:
            raise _Late
        self.tried.add(key)
        if candidate == self.best or not self.fails(candidate):
            return False
        self.best = candidate
        return True

    def steps(self, steps: Iterable[Op]) -> bool:
        return self.accept(replace(self.best, steps=tuple(steps)))

    # --- The passes ----------------------------------------------------------------------------------------------

    def drop_steps(self) -> bool:
        """Leave out runs of operations, long ones first."""
        changed = False
        size = len(self.best.steps)
        while size:
            start = len(self.best.steps) - size
            while start >= 0:
                steps = self.best.steps
                changed |= self.steps(steps[:start] + steps[start + size :])
                start -= size
            size //= 2
        return changed

    def drop_requests(self) -> bool:
        """Leave out everything that speaks of a request; or one request's operations of one kind."""
        changed = False
        for id in dict.fromkeys(op.id for op in self.best.steps if isinstance(op, Add)):
            changed |= self.steps(op for op in self.best.steps if getattr(op, "id", None) != id)
        return changed

    def simplify_steps(self) -> bool:
        """Make the values of one operation plain, and its numbers small."""
        changed = False
        for position in range(len(self.best.steps)):
            for value in _simpler(self.best.steps[position], position == len(self.best.steps) - 1):
                changed |= self.put(position, value)
            for name in _LEAST:
                number = getattr(self.best.steps[position], name, 0)
                changed |= self.lower(partial(self.number, position, name), number, _LEAST[name])
        return changed

    def put(self, position: int, op: Op) -> bool:
        steps = self.best.steps
        return self.steps((*steps[:position], op, *steps[position + 1 :]))

    def number(self, position: int, name: str, value: int) -> bool:
        op: Any = replace(self.best.steps[position], **{name: value})  # type: ignore[arg-type]  # the name says which type
        return self.put(position, _fitted(op) if isinstance(op, Add) else op)

    def lower(self, attempt: Callable[[int], bool], value: int, least: int) -> bool:
        """Find a small number that still fails, halving the distance to the least; return whether one was found."""
        if value <= least:
            return False
        low, changed = least, False
        while low < value:
            middle = (low + value) // 2
            if attempt(middle):
                value, changed = middle, True
            else:
                low = middle + 1
        return changed

    def simplify_config(self) -> bool:
        """Give the configuration its defaults back, and make small what cannot have them."""
        changed = False
        for name in CONFIG_KEYS:
            default = getattr(self.plain, name)
            if name != "policy" and getattr(self.best.config, name) != default:
                if self.configure(name, default):
                    changed = True
                elif name in _NUMBERS:
                    value = getattr(self.best.config, name)
                    changed |= self.lower(partial(self.configure, name), value, 0 if default == 0 else 1)
        return changed

    def configure(self, name: str, value: object) -> bool:
        try:
            config = replace(self.best.config, **{name: value})  # type: ignore[arg-type]  # the name says which type
        except OnbeatError:
            return False
        return self.accept(replace(self.best, config=config))

    def rename(self) -> None:
        """Call the requests a, b, c in the order in which they come."""
        ids = list(dict.fromkeys(op.id for op in self.best.steps if isinstance(op, Add)))
        names = dict(zip(ids, _NAMES, strict=False))
        if len(ids) <= len(_NAMES) and list(names) != list(names.values()):
            self.steps(_renamed(op, names) for op in self.best.steps)


def _fitted(op: Add) -> Add:
    """Return a request whose prefix and remote tokens are part of its prompt."""
    prefix = op.prefix and (op.prefix[0], min(op.prefix[1], op.prompt))
    return replace(op, prefix=prefix, remote_tokens=min(op.remote_tokens, op.prompt))


def _bare(steps: tuple[Op, ...]) -> Iterator[Op]:
    """Yield the operations with repeats written out and without expectations."""
    for _, op in flatten(steps):
        yield replace(op, expect=None) if isinstance(op, Schedule) and op.expect is not None else op


def _simpler(op: Op, last: bool) -> Iterator[Op]:
    """Yield simpler operations than this one."""
    for name, plain in _SIMPLE.get(type(op), {}).items():
        if getattr(op, name) != plain:
            yield replace(op, **{name: plain})
    if isinstance(op, Schedule) and op.throttle is not False and not last:
        yield replace(op, throttle=False)


def _renamed(op: Op, names: Mapping[str, str]) -> Op:
    if isinstance(op, Check | Repeat):
        return op
    changed: dict[str, Any] = {}
    if hasattr(op, "id"):
        changed["id"] = names.get(op.id, op.id)
    if isinstance(op, Schedule) and op.accept:
        changed["accept"] = {names.get(id, id): count for id, count in op.accept.items()}
    return replace(op, **changed)
