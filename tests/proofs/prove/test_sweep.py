"""The real step under symbolic numbers: what a sweep finds, and that its findings are real."""

import pytest

from onbeat_proofs.foreign.policies import without_hold
from onbeat_proofs.play.two_runs import violation_in
from onbeat_proofs.prove.recipe import to_scenario
from onbeat_proofs.prove.states import Fixed, Shape, build, take_step
from onbeat_proofs.prove.sweep import WITNESSES, Sweep, sweep
from onbeat_proofs.scenarios.files import dump, load_text
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import NotReproduced
from onbeat_spec.policy import POLICIES, Policy

SMALL = Shape(1, ("fresh|resume",))


@pytest.fixture(scope="module")
def swept() -> dict[str, Sweep]:
    return {name: sweep(SMALL, policy()) for name, policy in POLICIES.items()}


def test_onbeat_holds(swept: dict[str, Sweep]) -> None:
    assert not swept["onbeat"].refuted
    assert swept["onbeat"].counters.paths > 100


def test_the_older_policies_do_not(swept: dict[str, Sweep]) -> None:
    assert {"no-empty-step", "no-decode-no-hold", "one-token-passes"} <= set(swept["pr44558"].refuted)
    assert {"no-empty-step", "no-decode-no-hold", "resume-bypasses"} <= set(swept["local-work"].refuted)


def test_premises_are_met(swept: dict[str, Sweep]) -> None:
    assert {"budget", "flag-only-when-open", "full-sequence-fits", "evicted-is-out"} <= set(swept["onbeat"].witnessed)


def test_every_witness_belongs_to_an_invariant() -> None:
    with_predicates = {id for id, entry in CATALOGUE.items() if entry.state or entry.step or entry.runs}
    # A beat is an unthrottled step, by the theorem about phase 0.
    assert set(WITNESSES) == with_predicates - {"beat-equals-baseline"}


@pytest.mark.parametrize("policy", ["pr44558", "local-work"])
def test_refutations_become_scenarios(swept: dict[str, Sweep], policy: str) -> None:
    for invariant, refutation in swept[policy].refuted.items():
        scenario = to_scenario(invariant, refutation.model, SMALL, policy)
        assert scenario is not None, invariant
        (again,) = load_text(dump(scenario), "a refutation")
        assert violation_in(again, invariant) is not None
        assert len(scenario.steps) <= 8


class Generous(Scheduler):
    """Wrong on purpose: a step gives one token more than it has."""

    def _serve(self, flight, requests, hold, owed=None):  # type: ignore[no-untyped-def]  # as the base
        flight.step.budget += 1
        return super()._serve(flight, requests, hold, owed)


def test_a_broken_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onbeat_proofs.prove.states.Scheduler", Generous)
    assert "budget" in sweep(Shape(2, late=False), Policy()).refuted


def test_states_are_the_same_twice() -> None:
    values = {
        "budget": 20,
        "slots": 4,
        "free": 3,
        "r0.tokens/16": 2,
        "r0.computed/16": 1,
        "w0.tokens/16": 1,
        "w0.to_go": 2,
    }
    one, other = (take_step(build(Fixed(values), SMALL, Policy()), False) for _ in range(2))
    assert one.step.scheduled == other.step.scheduled != {}
    assert one.before == other.before


def test_a_model_that_breaks_an_assumption_is_refused() -> None:
    values = {"r0.tokens/16": 1, "r0.computed/16": 3}
    with pytest.raises(NotReproduced):
        build(Fixed(values), SMALL, Policy())


def test_without_hold_keeps_everything_else() -> None:
    off = without_hold(POLICIES["local-work"]())
    assert not off.may_hold(throttle=True, saturated=False, held_steps=0, max_hold_steps=9)
    assert off.holds_waiting(work=2, computed=0, external=0)
    assert off.name == "local-work"


@pytest.mark.parametrize(
    "shape",
    [
        Shape(1, ("fresh",), scheduling="priority"),
        Shape(1, ("offer",), loading=1, late=False),
        Shape(1, ("fresh",), cap=True, late=False),
        Shape(2, late=False, shared=True),
        Shape(1, ("fresh",), late=False, drafts=1, spare=True),
        Shape(1, ("fresh",), async_depth=2, late=False),
        Shape(1, ("resume",), block_size=1, late=False),
    ],
    ids=str,
)
def test_every_feature_is_swept(shape: Shape) -> None:
    found = sweep(shape, Policy())
    assert not found.refuted
    assert found.witnessed
