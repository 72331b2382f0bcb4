"""A run as plain values, held against the step table."""

import json

from onbeat_proofs.play.replay import replay
from onbeat_proofs.play.timeline import timeline
from onbeat_proofs.scenarios.files import load_text

CONFIG = "{block_size: 1, num_blocks: 8, max_num_batched_tokens: 4, max_num_seqs: 3}"


def states(steps: str, config: str = CONFIG) -> list[dict[str, str]]:
    """The states of all requests in every step of a scenario."""
    (scenario,) = load_text(f"name: x\nconfig: {config}\nsteps:\n{steps}")
    records = timeline(replay(scenario).history)
    assert json.loads(json.dumps(records)) == records
    return [{id: cell["state"] for id, cell in record["requests"].items()} for record in records]


def test_from_prefill_to_finished() -> None:
    steps = "  - add: {id: a, prompt: 6, max_tokens: 2}\n" + "  - schedule: {}\n" * 4
    assert states(steps) == [{"a": "prefill"}, {"a": "prefill"}, {"a": "decode"}, {"a": "finished"}]


def test_held_waiting_and_preempted() -> None:
    steps = """
  - add: {id: a, prompt: 3, max_tokens: 9}
  - schedule: {}
  - add: {id: b, prompt: 2, max_tokens: 4}
  - add: {id: c, prompt: 7, max_tokens: 1}
  - schedule: {throttle: true}
  - schedule: {throttle: false}
  - schedule: {throttle: false}
  - schedule: {throttle: false}
"""
    seen = states(steps)
    assert seen[0] == {"a": "prefill"}
    assert seen[1] == {"a": "decode", "b": "held", "c": "held"}
    assert seen[2] == {"a": "decode", "b": "prefill", "c": "waiting"}
    assert seen[3] == {"a": "decode", "b": "preempted", "c": "waiting"}


def test_loading_and_running_without_a_token() -> None:
    steps = """
  - add: {id: a, prompt: 3, max_tokens: 3, remote: {tokens: 3}}
  - schedule: {}
  - remote_done: a
  - schedule: {}
  - ineligible: {id: a, steps: 1}
  - schedule: {}
"""
    assert states(steps) == [{"a": "loading"}, {"a": "decode"}, {"a": "running"}]


def test_modes_and_drafts_are_those_of_the_step() -> None:
    (scenario,) = load_text(
        "name: x\nconfig: {num_draft_tokens: 2}\nsteps:\n"
        "  - add: {id: a, prompt: 3, max_tokens: 9}\n  - schedule: {throttle: true}\n  - schedule: {}\n"
        "  - pause: new\n  - schedule: {}\n"
    )
    first, second, third = timeline(replay(scenario).history)
    assert (first["throttle"], first["hold"], first["open"]) == (True, False, True)
    assert second["requests"]["a"] == {"state": "decode", "tokens": 3, "drafts": 2, "preempted": False}
    assert third["open"] is False
