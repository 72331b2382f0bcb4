"""What the ledger claims, and that `decide` can say no; test_decide.py decides every theorem under every policy."""

import pytest

from onbeat_proofs.prove.ledger import THEOREMS
from onbeat_proofs.prove.states import Numbers
from onbeat_proofs.prove.theorem import FOR_ALL, PathVerdict, Theorem, decide, rerun
from onbeat_proofs.prove.theorems.hold import no_decode_no_hold
from onbeat_spec.errors import NotReproduced, NotSymbolic
from onbeat_spec.policy import POLICIES, Policy

BY_ID = {theorem.id: theorem for theorem in THEOREMS}


def test_every_policy_but_ours_has_refutations() -> None:
    refuted = {name: {t.id for t in THEOREMS if name in t.refuted_under} for name in POLICIES}
    assert not refuted["onbeat"]
    assert {"no-empty-step/nothing-can-run", "no-empty-step/decode-evicts-itself"} <= refuted["pr44558"]
    assert {"no-empty-step/nothing-can-run", "no-empty-step/decode-evicts-itself"} <= refuted["local-work"]
    assert "one-token-passes/full-hit" in refuted["pr44558"] - refuted["local-work"]
    assert "flag-means-backlog/paused" in refuted["local-work"]


@pytest.mark.parametrize(
    "invariant",
    [
        "decode-never-held",
        "resume-bypasses",
        "saturation-opens",
        "no-decode-no-hold",
        "off-means-off",
        "held-at-most",
        "flag-lag",
        "order-kept",
        "budget",
    ],
)
def test_claimed_for_all_sizes(invariant: str) -> None:
    assert any(theorem.invariant == invariant and theorem.strength == FOR_ALL for theorem in THEOREMS)


class HoldsDecodes(Policy):
    """Wrong on purpose."""

    name = "holds-decodes"

    def holds_running(self, work: int) -> bool:
        return work > 0


class NeverSaturated(Policy):
    """Wrong on purpose."""

    name = "never-saturated"

    def may_hold(self, *, throttle: bool, saturated: bool, held_steps: int, max_hold_steps: int) -> bool:
        return throttle


class GreedyChunks(Policy):
    """Wrong on purpose."""

    name = "greedy"

    def grant(self, *, work: int, budget: int, cap: int) -> int:
        return work if work > 1 else min(work, budget)


class LateFlag(Policy):
    """Wrong on purpose."""

    name = "late-flag"

    def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
        return False


@pytest.mark.parametrize(
    ("policy", "id"),
    [
        (HoldsDecodes, "decode-never-held/decision"),
        (HoldsDecodes, "decode-never-held/running-turn"),
        (NeverSaturated, "saturation-opens/decision"),
        (NeverSaturated, "held-at-most/phase"),
        (GreedyChunks, "budget/turn"),
        (LateFlag, "flag-lag/phase"),
    ],
)
def test_a_wrong_policy_is_refuted(policy: type[Policy], id: str) -> None:
    verdict = decide(BY_ID[id], policy())
    assert verdict.verdict == "refuted"
    assert verdict.expected == "proved"
    assert not verdict.as_expected


def test_a_claim_that_says_nothing_is_unknown() -> None:
    theorem = Theorem("budget/vacuous", "Nothing.", lambda numbers, policy: PathVerdict(None, False))
    verdict = decide(theorem, Policy())
    assert verdict.verdict == "unknown"
    assert "premises" in verdict.message


def test_undecided_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(numbers: Numbers, policy: Policy) -> PathVerdict:
        from onbeat_spec.errors import Undecided

        raise Undecided("Z3 answered unknown")

    assert decide(Theorem("budget/hard", "Hard.", run), Policy()).verdict == "unknown"


def test_a_model_that_does_not_do_the_same_is_our_error() -> None:
    theorem = Theorem("no-decode-no-hold/decision", "", no_decode_no_hold)
    with pytest.raises(NotReproduced, match="does not happen in plain Python"):
        rerun(theorem, Policy(), {"work": 1, "can_run": True})


def test_what_cannot_be_run_symbolically_is_named() -> None:
    class Table(Policy):
        name = "table"

        def holds_running(self, work: int) -> bool:
            return {0: False}.get(work, True)

    with pytest.raises(NotSymbolic, match="dictionary key"):
        decide(BY_ID["decode-never-held/decision"], Table())
