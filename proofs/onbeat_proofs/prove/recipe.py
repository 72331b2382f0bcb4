"""From a model to a scenario file: operations that lead a scheduler into the model's state, and the decisive step.

A model gives the numbers of a state; a scenario has to get there by what a server can do. Everybody is added in order
of age; then one step for each loads, prefills a part, or decodes, with just the budget it takes, while the others may
not run. What comes out is checked by running it, and shrunk.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.two_runs import violation_in
from onbeat_proofs.prove.states import Fixed, Shape, build
from onbeat_proofs.scenarios.operations import Add, Ineligible, Op, RemoteDone, Scenario, Schedule
from onbeat_proofs.scenarios.shrink import shrink
from onbeat_reference.request import Request
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import OnbeatError

DEFAULT_HOLD = 64


@dataclass(slots=True)
class _Plan:
    """Steps that set a state up: who acts in each, with how many tokens."""

    budget: int
    free: int
    acts: list[tuple[Request, int]] = field(default_factory=list)
    promised: int = 0

    def act(self, request: Request, tokens: int, blocks: int, total: int) -> None:
        """Let a request take blocks for its first time; it is promised what it will need for all it knows."""
        self.acts.append((request, min(tokens, self.budget)))
        for done in range(self.budget, tokens, self.budget):
            self.acts.append((request, min(tokens - done, self.budget)))
        self.free -= blocks
        self.promised += max(0, total - blocks)


def to_scenario(theorem: str, model: Mapping[str, Any], shape: Shape, policy: str) -> Scenario | None:
    """Return a small scenario in which the scheduler reaches the model's state and violates the invariant.

    Args:
        theorem: id of what is refuted; up to a slash, of the invariant that is violated.
        model: numbers of the state.
        shape: what kind of state.
        policy: name, `module:Class` or `file.py:Class`, as the scenario will say it.

    None if the model's state cannot be reached by these means; then the model itself is what there is to show.
    """
    invariant = theorem.split("/", maxsplit=1)[0]
    text = policy_of(policy, Path())()

    def violated(candidate: Scenario) -> bool:
        return violation_in(candidate, invariant, policy=text) is not None

    scheduler = build(Fixed({**model, "held_steps": 0}), shape, text)
    if shape.scheduling == "priority":
        # Ties go by age; without ties the order of arrival is free, and whoever need not be there early comes late.
        for request in (*scheduler.running, *scheduler.waiting):
            request.priority *= 10
        for place, request in enumerate(scheduler.waiting):
            request.priority += place
    tight = scheduler.config.max_num_batched_tokens
    # With room in the configuration, and only the decisive step kept short, there is less to set up.
    for budget, throttle in product((max(tight, Config().max_num_batched_tokens), tight), (True, False)):
        plan = _plan(scheduler, budget)
        if plan is None:
            return None
        steps = (*_steps(scheduler, plan), Schedule(throttle=throttle, budget=tight if tight < budget else None))
        config = replace(scheduler.config, policy=policy, max_hold_steps=DEFAULT_HOLD, max_num_batched_tokens=budget)
        scenario = Scenario(
            f"{theorem} under {text.name}", invariants=(invariant,), violates=(invariant,), config=config, steps=steps
        )
        with suppress(OnbeatError):  # one that cannot be run shows nothing
            if violated(scenario):
                return shrink(scenario, violated)
    return None


def _plan(scheduler: Scheduler, budget: int) -> _Plan | None:
    """Choose the order of the setting up: loads, chunks, then decodes, which may grow into what was promised."""
    pool = scheduler.pool
    plan = _Plan(budget, pool.num_blocks)
    for request in (*scheduler.parked, *(r for r in scheduler.waiting if r.external > 0)):
        plan.act(request, 0, pool.blocks_for(request.external), pool.blocks_for(request.num_tokens))
    decodes = [r for r in scheduler.running if r.num_tokens - r.num_computed == 1]
    for request in scheduler.running:
        if request not in decodes:
            blocks = pool.blocks_for(request.num_computed)
            plan.act(request, request.num_computed, blocks, pool.blocks_for(request.num_tokens))
    for request in decodes:
        fits = min(request.num_computed, (plan.free - plan.promised) * pool.block_size)
        if fits < 1:
            return None
        plan.act(request, fits, pool.blocks_for(fits), 0)
        request.num_prompt = fits
        for _ in range(request.num_computed - fits):
            plan.acts.append((request, 1))
        plan.free -= pool.blocks_for(request.num_computed) - pool.blocks_for(fits)
    return plan


def _steps(scheduler: Scheduler, plan: _Plan) -> Iterator[Op]:
    """Write the plan down, up to the decisive step."""
    live = sorted((*scheduler.running, *scheduler.waiting, *scheduler.parked), key=lambda request: request.arrival)
    flag_step = bool(scheduler.saturated) and bool(scheduler.waiting)
    decisive = len(plan.acts) + flag_step
    first = {request.id: index for index, (request, _) in reversed(list(enumerate(plan.acts)))}
    last = {request.id: index for index, (request, _) in enumerate(plan.acts)}
    oldest_running = min((request.arrival for request in scheduler.running), default=0)
    # Who has no part in the setting up comes after it, unless it has to be older: the flag would take note of it.
    later = [r for r in live if r.id not in first and r.arrival > oldest_running]
    for request in live:
        if request in later:
            continue
        yield _add(request, scheduler)
        wait = first.get(request.id, decisive - flag_step)
        if wait:
            yield Ineligible(request.id, wait)
    for index, (request, tokens) in enumerate(plan.acts):
        yield Schedule(throttle=False, budget=tokens)
        rest = decisive - index - 1
        if last[request.id] == index and rest > 0 and request in scheduler.running:
            yield Ineligible(request.id, rest)
    for request in live:
        if request in later:
            yield _add(request, scheduler)
        elif request in scheduler.waiting and request.external > 0:
            yield RemoteDone(request.id)
    if flag_step:
        yield Schedule(throttle=False, budget=0)
    for request in live:
        if request.eligible_at > 1:
            yield Ineligible(request.id, 1)


def _add(request: Request, scheduler: Scheduler) -> Add:
    """Add a request so that its known tokens and its limit come out as in the model."""
    decode = request in scheduler.running and request.num_tokens - request.num_computed == 1
    prompt = request.num_prompt if decode else request.num_tokens
    return Add(
        request.id,
        prompt,
        request.limit - prompt,
        priority=request.priority,
        remote_tokens=request.external or request.remote_tokens,
    )
