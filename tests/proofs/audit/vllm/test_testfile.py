"""A finding as a pytest file: it asks what the message says. Needs no vLLM; the files do."""

import ast

import pytest

from onbeat_proofs.audit.results import Finding
from onbeat_proofs.audit.vllm.testfile import test_file as file_of
from onbeat_proofs.play.drain import AT_REST
from onbeat_proofs.scenarios.files import Scenario
from onbeat_proofs.scenarios.operations import Add, Op, Schedule

ADDED = (Add("a", 3, 2), Add("b", 3, 2))
THROTTLED, CLOCK = Schedule(throttle=True), Schedule()


def text_of(invariant: str, message: str, *steps: Op) -> str | None:
    finding = Finding(invariant, message, 0, "search", Scenario("found", steps=(*ADDED, *steps)), "")
    return file_of(finding, "vllm.v1.core.sched.scheduler", "Scheduler", "0.33.0")


UNLESS = "{0!r} in world.got or {0!r} not in world.live"
THEN = "{0!r} in world.got or {1!r} not in world.got"


@pytest.mark.parametrize(
    ("invariant", "message", "last", "asked"),
    [
        ("resume-bypasses", "b, a remote resume with 1 loaded tokens, was held", THROTTLED, "throttled.get('b', 0) >="),
        ("one-token-passes", "remote resume b has one token of local work", THROTTLED, "throttled.get('b', 0) >="),
        ("decode-never-held", "decode a got 0 tokens, and 1 without", THROTTLED, "throttled.get('a', 0) >="),
        ("no-empty-step", "nothing scheduled", THROTTLED, "assert throttled or not unthrottled"),
        ("no-decode-no-hold", "scheduled: {}", THROTTLED, "assert throttled == unthrottled"),
        ("flag-means-backlog", "the flag is False and b waits", CLOCK, "assert run().flag is True"),
        ("visit-once", "decode b got no token though 3 were left", CLOCK, f"assert {UNLESS.format('b')}"),
        ("progress", "3 steps in a row did nothing though work is there", CLOCK, "assert world.got or not world.live"),
        ("oldest-finishes", "a was preempted for the younger b", CLOCK, f"assert {UNLESS.format('a')}"),
        (
            "order-kept",
            "fresh prefill b was admitted before the older a",
            CLOCK,
            "assert 'a' in world.got or 'b' not in world.got",
        ),
    ],
)
def test_it_asks_what_the_message_says(invariant: str, message: str, last: Op, asked: str) -> None:
    text = text_of(invariant, message, last)
    assert text is not None
    ast.parse(text)
    (judged,) = [line.strip() for line in text.splitlines() if line.endswith(f"{message!r}")]
    assert judged.startswith(asked if asked.startswith("assert") else f"assert {asked}")
    assert "onbeat" not in text


@pytest.mark.parametrize(
    ("invariant", "last"),
    [("progress", AT_REST), ("blocks-conserved", CLOCK), ("no-empty-step", CLOCK)],
)
def test_what_such_a_file_cannot_ask(invariant: str, last: Op) -> None:
    assert text_of(invariant, "a never ended", last) is None
