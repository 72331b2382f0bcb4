"""Random histories of operations for a fake engine, as plain data, so that several engines can live through one."""

from random import Random
from typing import Any

from tests.engine.vllm.real import Engine, Options

Operation = tuple[str, tuple[Any, ...], dict[str, Any]]


def options(random: Random, *, lookahead: bool) -> Options:
    """A configuration: small, so that budget, slots and blocks run out."""
    return Options(
        scheduling=random.choice(["fcfs", "priority"]),
        block_size=random.choice([2, 4]),
        num_blocks=random.choice([9, 14, 40]),
        tokens=random.choice([6, 12, 32]),
        seqs=random.choice([2, 4, 6]),
        caching=random.random() < 0.5,
        remote=random.random() < 0.6,
        threshold=random.choice([0, 0, 5]),
        drafts=0 if lookahead else random.choice([0, 0, 2]),
        lookahead=lookahead,
    )


def operation(random: Random, engine: Engine, *, throttle: float, pauses: bool = True) -> Operation:
    """The next operation for an engine in its present state; `throttle` is the share of throttled steps."""
    live = list(engine.scheduler.requests)
    loading = engine.loading
    roll = random.random()
    if roll < 0.25 and len(live) < 9:
        room = engine.options.num_blocks * engine.options.block_size
        prompt = random.randint(1, min(24, room - 6))
        remote = random.randint(1, prompt) if engine.options.remote and random.random() < 0.5 else 0
        where = {
            "priority": random.choice([0, 0, 1, 2]),
            "prefix": random.choice([0, prompt // 2, max(0, prompt - 1)]),
            "remote": remote,
            "landing": random.random() < 0.7,
        }
        return "add", (f"r{engine.added}", prompt, random.randint(1, 6)), where
    if roll < 0.29 and live:
        return "abort", (random.choice(live),), {}
    paused = engine.scheduler.pause_state.name != "UNPAUSED"
    if roll < (0.45 if paused else 0.3) and pauses:
        return "pause", ("UNPAUSED" if paused else random.choice(["PAUSED_NEW", "PAUSED_ALL"]),), {}
    if len(engine.flights) >= (2 if engine.options.lookahead else 1):
        landed = tuple(id for id in loading if random.random() < 0.5)
        failed = tuple(id for id in loading if id not in landed and random.random() < 0.1)
        return "deliver", (landed, failed), {}
    return "schedule", (random.random() < throttle,), {}


def apply(engine: Engine, operation: Operation) -> Any:
    """Do one operation."""
    name, arguments, named = operation
    return getattr(engine, name)(*arguments, **named)
