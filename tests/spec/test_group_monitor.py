"""The monitor of a group, live: ranks hand in their lock steps one by one."""

import pytest

from onbeat_spec.group_monitor import GroupMonitor, GroupViolation, judge
from onbeat_spec.records import GroupStep, LockStep, Member


def member(number: int, phase: int = 0) -> Member:
    return Member(LockStep(number, phase), 1, True, 1)


def test_a_lock_step_is_complete_once_all_have_handed_it_in() -> None:
    monitor = GroupMonitor((0, 1))
    assert monitor.lacking() == 0
    assert monitor.observe(0, member(5)) == []
    assert monitor.observe(0, member(6)) == []
    assert monitor.lacking() == 1
    assert monitor.observe(1, member(5)) == [GroupStep(5, {0: member(5), 1: member(5)})]
    assert monitor.observe(1, member(6)) == [GroupStep(6, {0: member(6), 1: member(6)})]


def test_who_has_a_later_one_has_missed_it() -> None:
    monitor = GroupMonitor((0, 1))
    monitor.observe(0, member(5))
    monitor.observe(1, member(5))
    monitor.observe(0, member(6))
    assert monitor.observe(1, member(7)) == [GroupStep(6, {0: member(6)}, (1,))]


def test_ranks_are_compared_from_where_all_of_them_are_there() -> None:
    monitor = GroupMonitor((0, 1))
    monitor.observe(0, member(3))
    assert monitor.observe(1, member(5)) == []
    assert monitor.observe(0, member(5)) == [GroupStep(5, {0: member(5), 1: member(5)})]


def test_who_has_gone_is_waited_for_no_more() -> None:
    monitor = GroupMonitor((0, 1, 2))
    for rank in (0, 1):
        monitor.observe(rank, member(1))
    assert monitor.gone(2) == [GroupStep(1, {0: member(1), 1: member(1)})]
    monitor.observe(0, member(2))
    assert monitor.gone(0) == []
    assert monitor.observe(1, member(2)) == [GroupStep(2, {0: member(2), 1: member(2)})]
    assert monitor.observe(1, member(3)) == [GroupStep(3, {1: member(3)})]
    with pytest.raises(KeyError):
        monitor.gone(0)
    assert monitor.gone(1) == []
    assert monitor.lacking() is None


def test_a_rank_on_its_own_is_no_group() -> None:
    monitor = GroupMonitor((0,))
    assert monitor.observe(0, member(1)) == []


def test_lock_steps_are_judged_by_the_invariants_of_the_catalogue() -> None:
    step = GroupStep(4, {0: member(4, 0), 1: member(4, 1)}, (2,))
    assert list(judge(step)) == [
        GroupViolation("phase-agrees", 4, "phases differ: rank 0 0, rank 1 1"),
        GroupViolation("collectives-align", 4, "rank 2 took no part in it; 0, 1 did"),
    ]
    assert list(judge(GroupStep(4, {0: member(4), 1: member(4)}))) == []
