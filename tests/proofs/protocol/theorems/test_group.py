"""The theorems about groups of any size."""

from dataclasses import replace

import pytest

from onbeat_proofs.protocol.theorems import group
from onbeat_proofs.prove.theorem import Theorem, decide
from onbeat_spec import protocol
from onbeat_spec.catalogue import GROUP_CATALOGUE
from onbeat_spec.policy import Policy
from onbeat_spec.protocol import Agreement, GroupSettings, Rank


@pytest.mark.parametrize("theorem", group.THEOREMS, ids=lambda theorem: theorem.id)
def test_a_theorem_is_proved_and_its_premises_are_met(theorem: Theorem) -> None:
    verdict = decide(theorem, Policy())
    assert (verdict.verdict, verdict.message) == ("proved", "")
    assert verdict.model, "the witness"


def test_each_is_about_an_invariant_of_the_catalogue() -> None:
    assert {theorem.invariant for theorem in group.THEOREMS} <= set(GROUP_CATALOGUE)


@pytest.mark.parametrize(
    ("id", "name", "message"),
    [
        ("wake-not-lost/stop", "after_step", "a rank stops"),
        ("phase-agrees/turn-keeps", "after_step", ""),
        ("sync-interval-free/else", "after_step", ""),
    ],
)
def test_a_wrong_text_is_refuted(monkeypatch: pytest.MonkeyPatch, id: str, name: str, message: str) -> None:
    def wrong(rank: Rank, settings: GroupSettings, agreement: Agreement | None) -> Rank:
        if agreement is not None and rank.read == agreement.highest and not agreement.work:
            return protocol.stop(rank)  # whatever the others have read
        after = protocol.after_step(rank, settings, agreement)
        return after._replace(phase=settings.sync) if agreement is None else after

    monkeypatch.setattr(group, name, wrong)
    theorem = next(theorem for theorem in group.THEOREMS if theorem.id == id)
    verdict = decide(replace(theorem), Policy())
    assert verdict.verdict == "refuted"
    assert message in verdict.message
