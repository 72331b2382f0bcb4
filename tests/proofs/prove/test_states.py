"""The assumptions of the start states: operations keep them, faults do not, and histories reach no other state."""

from collections.abc import Callable
from typing import Any

import pytest

from onbeat_proofs.audit.histories import random_histories
from onbeat_proofs.prove.sound import wrong_with
from onbeat_proofs.prove.theorem import decide
from onbeat_proofs.prove.theorems.states import THEOREMS
from onbeat_reference.lifecycle import Lifecycle
from onbeat_reference.pool import CountingPool
from onbeat_reference.request import Request
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.policy import POLICIES, Policy

BY_ID = {theorem.id.partition("/")[2]: theorem for theorem in THEOREMS}


@pytest.mark.parametrize("name", BY_ID)
def test_every_operation_keeps_them(name: str) -> None:
    verdict = decide(BY_ID[name], Policy())
    assert verdict.verdict == "proved", (verdict.message, verdict.model)


class IgnoresPromises(Policy):
    """Wrong on purpose."""

    name = "ignores-promises"

    def fits_whole(self, *, needed: int, free: int, promised: int) -> bool:
        return needed <= free


@pytest.mark.parametrize("name", ["admit", "resume"])
def test_a_policy_that_ignores_promises_is_refuted(name: str) -> None:
    verdict = decide(BY_ID[name], IgnoresPromises())
    assert verdict.verdict == "refuted"
    assert "blocks are promised" in verdict.message


def _grows_on_credit(pool: CountingPool, request: Request, num_tokens: int) -> bool:
    new = pool.blocks_for(num_tokens) - request.num_blocks
    if new > 0:
        pool.free -= new
        request.num_blocks += new
        pool._take(request, new)
    return True


def _forgets_the_promise(pool: CountingPool, request: Request) -> int:
    released = pool._give(request)
    pool.free += released
    request.reserved = request.num_blocks = 0
    return released


def _rolls_back_and_keeps_drafts(scheduler: Lifecycle, request: Request, valid: int) -> None:
    request.external = request.num_computed = valid
    request.num_placeholders = 0
    request.num_drafts = 2 * request.limit


def _lands_with_all(scheduler: Lifecycle, request: Request, valid: int) -> None:
    scheduler.parked.remove(request)
    request.external = request.num_computed = request.num_tokens
    scheduler._enqueue(request)


FAULTS: list[tuple[type, str, Callable[..., Any], str]] = [
    (CountingPool, "grow", _grows_on_credit, "serve"),
    (CountingPool, "release", _forgets_the_promise, "preempt"),
    (CountingPool, "release", _forgets_the_promise, "abort-running"),
    (Lifecycle, "_roll_back", _rolls_back_and_keeps_drafts, "fail-within-step"),
    (Lifecycle, "_landed", _lands_with_all, "land"),
]


@pytest.mark.parametrize(("owner", "method", "fault", "name"), FAULTS)
def test_a_fault_is_noticed(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, fault: Callable[..., Any], name: str
) -> None:
    monkeypatch.setattr(owner, method, fault)
    assert decide(BY_ID[name], Policy()).verdict == "refuted"


class Watched(Scheduler):
    """Looks at every request after whatever is done to one."""

    looked = 0

    def _look(self) -> None:
        for request in (*self.requests.values(), *self.orphans):
            wrong = wrong_with(request, self.config.block_size, self.config.num_draft_tokens)
            assert wrong is None or request in self.orphans, f"{request}: {wrong}"
        Watched.looked += len(self.requests)


def _looks_after(name: str) -> Callable[..., Any]:
    method = getattr(Scheduler, name)

    def then_look(self: Watched, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self._look()
        return result

    return then_look


for operation in ("schedule", "update", "add_request", "abort", "load_finished", "load_failed", "reset_prefix_cache"):
    setattr(Watched, operation, _looks_after(operation))


def test_histories_reach_no_other_state() -> None:
    """With everything that histories do: drafts, loads of both kinds that fail, sharing, pauses, resets, aborts."""
    found: list[object] = []
    random_histories(
        Watched,
        POLICIES["onbeat"](),
        lambda violation, scenario: found.append((violation, scenario)),
        histories=150,
        random_seed=0,
    )
    assert found == []
    assert Watched.looked > 10_000
