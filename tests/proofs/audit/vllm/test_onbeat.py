"""Our schedulers for vLLM, audited like everybody's: they keep their text, and what they violate is the base's."""

import pytest

from onbeat_proofs.audit.job import AuditJob, audit_apart
from onbeat_proofs.audit.vllm.adapter import VllmAdapter
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.scenarios.files import load_text

pytest.importorskip("vllm", reason="vLLM is not installed here; make vllm-test VERSION=0.33.0 runs this with it")

from onbeat_proofs.audit.vllm import library

if library.version() < (0, 31):
    pytest.skip("these schedulers need vLLM 0.31.0 or newer", allow_module_level=True)

OVERTAKEN = """
name: a preempted request sits down behind an older one that was held
config:
  block_size: 2
  num_blocks: 10
  long_prefill_token_threshold: 3
  prefill_schedule_interval: 2
  data_parallel_size: 2
steps:
  - add: {id: a, prompt: 4, max_tokens: 8}
  - add: {id: b, prompt: 3, max_tokens: 7}
  - schedule: {throttle: false}
  - schedule: {throttle: false}
  - add: {id: c, prompt: 5, max_tokens: 1}
  - schedule: {throttle: false}
  - schedule: {}
  - add: {id: e, prompt: 1, max_tokens: 2}
  - schedule: {throttle: false}
  - schedule: {}
  - add: {id: f, prompt: 1, max_tokens: 2}
  - schedule: {throttle: false}
  - schedule: {}
  - schedule: {}
"""


def test_a_preempted_request_does_not_overtake() -> None:
    (scenario,) = load_text(OVERTAKEN)
    cls = load_scheduler("onbeat_engine.vllm:OnbeatScheduler")
    adapter = VllmAdapter()
    outcome = replay_runs(scenario, adapter.factory(cls), adapter.policy(cls))
    assert "order-kept" not in {violation.invariant for violation in outcome.violations}
    assert outcome.history[-1].step.admitted == ["c", "e"]


@pytest.mark.parametrize("name", ["OnbeatScheduler", "OnbeatAsyncScheduler"])
def test_it_keeps_its_text_and_violates_nothing_of_its_own(name: str) -> None:
    report = audit_apart(AuditJob(f"onbeat_engine.vllm:{name}", budget="quick", own=True))
    assert report.policy == "onbeat"
    assert [finding.message for finding in report.findings] == []
    texts = {row.invariant: row.verdict for row in report.rows if row.question == "policy"}
    assert texts == dict.fromkeys(texts, "holds")
    assert len(texts) == 3
