"""A violation is made small, and the run that shows it ends with the step that violates."""

import pytest

from onbeat_proofs.audit import findings
from onbeat_proofs.audit.adapters import ReferenceAdapter
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.operations import Add, Scenario, Schedule
from onbeat_spec.config import Config
from onbeat_spec.policy import POLICIES
from tests.proofs.audit.broken import OneTooMany

IDLE = (Schedule(throttle=False),) * 3
ADDED = (Add("a", prompt=3, max_tokens=2), Add("b", prompt=3, max_tokens=2))
CONFIG = Config(max_num_seqs=1)
LATE = Scenario("late", config=CONFIG, steps=(*IDLE, *ADDED, *IDLE))
EARLY = Scenario("early", config=CONFIG, steps=LATE.steps[3:])


def test_what_follows_the_violation_is_cut_even_if_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made small, it is shown by an earlier step than before; a pytest file asks after the last."""
    policy = POLICIES["local-work"]()
    smallest = findings.Smallest(ReferenceAdapter(), OneTooMany, policy, name="over", base=None, seconds=0.0)
    (first, *_) = replay_runs(LATE, smallest.factory, policy, expects=False).violations
    monkeypatch.setattr(findings, "shrink", lambda *_: EARLY)
    finding = smallest.finding(first, LATE, "search")
    assert (finding.invariant, finding.step) == (first.invariant, 0)
    assert finding.scenario.steps == EARLY.steps[:3]
