"""The policy text, decision by decision: what each of the three policies says, in tables."""

from dataclasses import dataclass

import pytest

from onbeat_spec.policy import POLICIES, LocalWork, Policy, PullRequest44558, is_decode, local_work, runnable

ALL = ("onbeat", "pr44558", "local-work")
BOTH = (False, True)


@dataclass
class Counts:
    num_tokens: int = 0
    num_placeholders: int = 0
    num_computed: int = 0
    limit: int = 100
    eligible_at: int = 0
    num_prompt: int = 1


def policy(name: str) -> Policy:
    return POLICIES[name]()


# --- The words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "placeholders", "computed", "work"),
    [
        (7, 0, 0, 7),  # nothing computed
        (7, 0, 6, 1),  # a decode
        (7, 0, 7, 0),  # its next token is not known yet, and nobody samples it
        (7, 1, 7, 1),  # its next token is in flight
        (7, 2, 8, 1),
        (400, 1, 100, 301),  # B42: what is in flight is known by the time the step runs
    ],
)
def test_local_work(tokens: int, placeholders: int, computed: int, work: int) -> None:
    assert local_work(Counts(tokens, placeholders, computed)) == work


@pytest.mark.parametrize(("work", "expected"), [(0, True), (1, True), (2, False), (301, False)])
def test_a_decode_has_at_most_one_token_of_work(work: int, expected: bool) -> None:
    assert is_decode(work) is expected


@pytest.mark.parametrize("prompt", [1, 4, 5, 6, 7])
@pytest.mark.parametrize(("computed", "expected"), [(6, True), (5, False), (4, False), (0, False)])
def test_b16_the_end_of_the_prompt_plays_no_part(prompt: int, computed: int, expected: bool) -> None:
    """Seven tokens known, wherever the prompt among them ends: the last one left is a decode, two are not."""
    assert is_decode(local_work(Counts(num_tokens=7, num_computed=computed, num_prompt=prompt))) is expected


@pytest.mark.parametrize(
    ("tokens", "in_flight", "expected"),
    [(4, 0, True), (4, 1, True), (5, 0, True), (5, 1, False), (6, 0, False), (4, 2, False)],
)
def test_nobody_runs_whose_last_token_is_known_or_in_flight(tokens: int, in_flight: int, expected: bool) -> None:
    assert runnable(Counts(tokens, in_flight, limit=6), 0) is expected


@pytest.mark.parametrize(("now", "expected"), [(0, False), (2, False), (3, True), (4, True)])
def test_nobody_runs_before_it_is_eligible(now: int, expected: bool) -> None:
    assert runnable(Counts(5, 0, limit=6, eligible_at=3), now) is expected
    assert not runnable(Counts(6, 0, limit=6, eligible_at=3), now)


# --- Promises --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("loads", "limit", "drafts", "tokens"),
    [
        (False, 100, 3, 32),
        (True, 100, 0, 33),
        (True, 100, 3, 36),
        (True, 37, 3, 36),  # its last token needs no KV
        (True, 36, 3, 35),
        (True, 33, 3, 32),  # it ends with its first token
    ],
)
def test_a_load_reserves_its_first_decode_step(name: str, loads: bool, limit: int, drafts: int, tokens: int) -> None:
    assert policy(name).reserves(known=32, limit=limit, drafts=drafts, loads=loads) == tokens


# --- The policies by name --------------------------------------------------------------------------------------------


def test_the_policies_by_name() -> None:
    assert list(POLICIES.items()) == [("onbeat", Policy), ("pr44558", PullRequest44558), ("local-work", LocalWork)]
    assert all(kind.name == name for name, kind in POLICIES.items())


# --- 1. Hold or not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("throttle", "saturated", "held_steps", "expected"),
    [
        (True, False, 0, True),
        (True, False, 4, True),
        (True, False, 5, False),  # B08: the hard bound of 5 wins over the flag
        (True, False, 6, False),
        (True, True, 0, False),  # B02: a saturated rank is not throttled
        (False, False, 0, False),
        (False, True, 0, False),
    ],
)
def test_may_hold(name: str, throttle: bool, saturated: bool, held_steps: int, expected: bool) -> None:
    assert (
        policy(name).may_hold(throttle=throttle, saturated=saturated, held_steps=held_steps, max_hold_steps=5)
        is expected
    )


@pytest.mark.parametrize(
    ("work", "can_run", "onbeat", "others"),
    [
        (1, True, True, True),
        (0, True, True, True),
        (1, False, False, True),  # B07: a decode that cannot run is no reason, except to the published policies
        (2, True, False, False),
        (2, False, False, False),
    ],
)
def test_justifies_hold(work: int, can_run: bool, onbeat: bool, others: bool) -> None:
    assert {name: policy(name).justifies_hold(work=work, can_run=can_run) for name in ALL} == {
        "onbeat": onbeat,
        "pr44558": others,
        "local-work": others,
    }


# --- 2. The running list ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("work", "expected"), [(0, False), (1, False), (2, True), (100, True)])
def test_chunks_are_held_and_decodes_are_not(name: str, work: int, expected: bool) -> None:
    assert policy(name).holds_running(work) is expected


@pytest.mark.parametrize("name", ALL)
def test_grant_is_the_least_of_the_three(name: str) -> None:
    for work in range(6):
        for budget in range(6):
            for cap in range(6):
                assert policy(name).grant(work=work, budget=budget, cap=cap) == min(work, budget, cap)


@pytest.mark.parametrize("name", ALL)
def test_chunk_budget_leaves_what_is_owed(name: str) -> None:
    for budget in range(6):
        for owed in range(8):
            assert policy(name).chunk_budget(budget=budget, owed=owed) == max(0, budget - owed)


# --- 3. No hold leaves a step empty ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheduled", "onbeat"), [(0, True), (1, False), (7, False)])
def test_only_onbeat_lifts_a_hold_and_only_if_nobody_ran(scheduled: int, onbeat: bool) -> None:
    assert policy("onbeat").lifts(scheduled) is onbeat
    assert policy("pr44558").lifts(scheduled) is False
    assert policy("local-work").lifts(scheduled) is False


# --- 4. The waiting list ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_scans_when_open_and_nobody_was_preempted(name: str) -> None:
    assert {
        (preempted, open): policy(name).scans(preempted=preempted, open=open) for preempted in BOTH for open in BOTH
    } == {
        (False, True): True,
        (False, False): False,
        (True, True): False,
        (True, False): False,
    }


@pytest.mark.parametrize(
    ("work", "computed", "external", "held_by"),
    [
        # The four arms of B01. Cached tokens count as computed only from admission on, so (a) and (b) have none.
        pytest.param(1, 0, 0, {"pr44558"}, id="a: 33 tokens, 32 of them cached"),
        pytest.param(2, 0, 0, {"onbeat", "pr44558", "local-work"}, id="b: 34 tokens, 32 of them cached"),
        pytest.param(1, 31, 32, set[str](), id="c: 32 tokens, all of them loaded, the last to be computed again"),
        pytest.param(32, 32, 32, {"local-work"}, id="d: 64 tokens, 32 of them loaded"),
        # Beside them.
        pytest.param(64, 0, 0, {"onbeat", "pr44558", "local-work"}, id="nothing at hand"),
        pytest.param(1, 0, 0, {"pr44558"}, id="a single token, nothing at hand"),
        pytest.param(1, 0, 32, {"pr44558"}, id="a load within the step that brings everything"),
        pytest.param(32, 0, 32, {"pr44558", "local-work"}, id="a load within the step that brings half"),
    ],
)
def test_b01_local_work_decides_who_is_held(work: int, computed: int, external: int, held_by: set[str]) -> None:
    assert {
        name for name in ALL if policy(name).holds_waiting(work=work, computed=computed, external=external)
    } == held_by


def test_only_onbeat_looks_behind_a_held_request() -> None:
    assert [policy(name).scans_past_held() for name in ALL] == [True, False, False]


def test_only_ours_starts_loads_once_the_budget_is_used_up() -> None:
    assert [policy(name).scans_past_spent() for name in ALL] == [True, False, False]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("needed", "free", "promised", "expected"),
    [
        (4, 4, 0, True),
        (5, 4, 0, False),
        (4, 6, 2, True),
        (4, 6, 3, False),  # what is promised to others is theirs
        (0, 0, 0, True),
        (0, 2, 3, False),
        (-1, 2, 3, True),
    ],
)
def test_fits_whole(name: str, needed: int, free: int, promised: int, expected: bool) -> None:
    assert policy(name).fits_whole(needed=needed, free=free, promised=promised) is expected


# --- 5. The saturation flag ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hold", "preempted", "open", "published", "local_work"),
    [
        (False, False, True, True, True),
        (False, False, False, False, True),  # from 0.32.0 on also while new requests are paused
        (False, True, True, False, False),  # B03
        (False, True, False, False, False),
        (True, False, True, False, False),
        (True, False, False, False, False),
        (True, True, True, False, False),
        (True, True, False, False, False),
    ],
)
def test_who_writes_the_flag(hold: bool, preempted: bool, open: bool, published: bool, local_work: bool) -> None:
    assert [policy(name).writes_flag(hold=hold, preempted=preempted, open=open) for name in ALL] == [
        published,
        published,
        local_work,
    ]


@pytest.mark.parametrize("backlog", BOTH)
@pytest.mark.parametrize("waiting", BOTH)
def test_what_the_flag_says(backlog: bool, waiting: bool) -> None:
    """A backlog that could have been admitted, or anybody who waits at all."""
    assert [policy(name).saturated(backlog=backlog, waiting=waiting) for name in ALL] == [backlog, waiting, waiting]
