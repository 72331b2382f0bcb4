"""Processes of ranks: told what to do, missed at the second look, and ended."""

import asyncio
import sys
import time

import psutil
import pytest

from onbeat_engine.front import children
from onbeat_engine.front.children import Children

ECHO = (sys.executable, "-S", "-c", "import sys; sys.exit(int(sys.stdin.readline()))")
WAITS = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


def wait_for_the_end(of: Children) -> None:
    while of.reap():
        time.sleep(0.01)


def test_a_rank_is_told_what_to_do_and_missed_at_the_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "COMMAND", ECHO)
    found = Children()
    pid = found.start(3, b"7")
    assert 3 in found
    assert found.processes[3].pid == pid
    wait_for_the_end(found)
    assert [found.ended(3), found.ended(3)] == ["", "exit code 7"]
    assert found.ended(2) is None
    asyncio.run(found.end([3]))
    found.start(3, b"5")  # in its place: it is looked at anew
    wait_for_the_end(found)
    assert [found.ended(3), found.ended(3)] == ["", "exit code 5"]
    asyncio.run(found.end([3]))
    assert 3 not in found
    assert found.ended(3) is None


def test_one_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "COMMAND", WAITS)
    found = Children()
    found.start(0, b"")
    found.start(1, b"")
    assert found.ended(0) is None
    found.kill(0)
    found.kill(9)
    while found.processes[0].poll() is None:
        time.sleep(0.01)
    assert [found.ended(0), found.ended(0)] == ["", "signal 9"]
    assert found.reap()
    pid = found.processes[1].pid
    asyncio.run(found.end([0, 1]))
    assert not found.reap()
    assert not psutil.pid_exists(pid)


def test_one_that_ends_before_it_is_told_is_missed_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "COMMAND", ("true",))
    found = Children()
    found.start(0, b"x" * (1 << 20))  # more than a pipe holds
    wait_for_the_end(found)
    assert [found.ended(0), found.ended(0)] == ["", "exit code 0"]
    asyncio.run(found.end([0]))
