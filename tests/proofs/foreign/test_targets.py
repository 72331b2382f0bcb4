"""Classes named as text: schedulers and policies."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.foreign.targets import is_ours, load_scheduler
from onbeat_reference import Scheduler
from onbeat_spec.errors import NotAScheduler, OnbeatError, PolicyError
from onbeat_spec.policy import POLICIES, Policy

MINE = """
from onbeat_spec.policy import Policy

class Mine(Policy):
    name = "mine"

class Picky(Policy):
    def __init__(self, argument): pass

class Other:
    pass

VALUE = 3
"""


OWN = """
from onbeat_spec.policy import Policy

class InPlace(Policy):
    def holds_waiting(self, work: int, computed: int, external: int) -> bool:
        return False

    def holds_running(self, anything: int) -> bool:
        return True

class Renamed(Policy):
    def holds_waiting(self, work: int, computed: int, remote: int) -> bool:
        return remote == 0

class Needs(Policy):
    def chunk_budget(self, *, budget: int, owed: int, more: int) -> int:
        return budget

class ByName(Policy):
    def holds_running(self, *, work: int) -> bool:
        return False

class Value(Policy):
    scans_past_held = True

class BuiltIn(Policy):
    may_hold = max
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with modules of somebody else's, and the current one."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "broken.py").write_text("x = 1\nx = = 2\n")
    (tmp_path / "failing.py").write_text("import os\nraise RuntimeError('no\\nGPU')\n")
    (tmp_path / "needing.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scheduler_is_found_by_module_and_by_file(folder: Path) -> None:
    assert load_scheduler("onbeat_reference:Scheduler") is Scheduler
    (folder / "own.py").write_text("from onbeat_reference import Scheduler\nclass Own(Scheduler): pass\n")
    assert issubclass(load_scheduler("own.py:Own"), Scheduler)
    assert issubclass(load_scheduler("own:Own"), Scheduler), "the current folder is searched"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("onbeat_reference", "'onbeat_reference'; it must be module:Class or path/to/file.py:Class"),
        ("onbeat_reference:", "it must be module:Class"),
        (":Scheduler", "it must be module:Class"),
        ("nowhere_at_all:X", "there is no module 'nowhere_at_all'"),
        ("onbeat_reference.nowhere:X", "there is no module 'onbeat_reference.nowhere'"),
        ("onbeat_reference:Schedular", "onbeat_reference has no 'Schedular'; its classes are BlockPool"),
        ("onbeat_proofs.foreign.targets:load_class", "is a function; name a class"),
        ("broken:X", "cannot be imported: SyntaxError: invalid syntax at"),
        ("failing:X", "cannot be imported: RuntimeError: no GPU at"),
        ("needing:X", "cannot be imported: ModuleNotFoundError: No module named 'a_module_that_is_nowhere' at"),
    ],
)
def test_what_is_no_scheduler_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(NotAScheduler) as caught:
        load_scheduler(text)
    _one_line(caught.value, message)


@pytest.mark.parametrize("name", POLICIES)
def test_a_built_in_policy_is_found_by_its_name(name: str) -> None:
    assert policy_of(name) is POLICIES[name]


def test_a_policy_is_found_by_module_and_by_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert policy_of("onbeat_spec.policy:LocalWork") is POLICIES["local-work"]
    assert policy_of("mine.py:Mine").name == "mine"
    monkeypatch.chdir("/")
    found = policy_of("mine.py:Mine", folder)
    assert issubclass(found, Policy)
    assert found.__module__.startswith("onbeat_file_mine_")


@pytest.mark.usefixtures("folder")
def test_decisions_may_take_in_place_what_is_given_by_name() -> None:
    policy = policy_of("own.py:InPlace")()
    assert not policy.holds_waiting(work=2, computed=0, external=0)
    assert policy.holds_running(1)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fifo", "policy is 'fifo'; it must be one of onbeat, pr44558, local-work, module:Class or file.py:Class"),
        ("nowhere.py:Mine", "there is no file"),
        ("broken.py:Mine", "broken.py:2"),
        ("failing.py:Mine", "RuntimeError: no GPU at"),
        ("mine.py:Nine", "mine.py has no 'Nine'; its classes are Mine, Other, Picky, Policy"),
        ("mine.py:Other", "is no subclass of onbeat_spec.policy.Policy"),
        ("mine.py:VALUE", "is a int; name a class"),
        ("mine.py:Picky", "cannot be made without arguments: TypeError"),
        ("own.py:Renamed", "holds_waiting is called with (work=..., computed=..., external=...): missing a required"),
        ("own.py:Renamed", "argument: 'remote'; give its parameters these names"),
        ("own.py:Needs", "chunk_budget is called with (budget=..., owed=...): missing a required argument: 'more'"),
        ("own.py:ByName", "holds_running is called with (work): too many positional arguments"),
        ("own.py:Value", "scans_past_held is a bool; it must be a method"),
        ("own.py:BuiltIn", "may_hold is max, whose parameters cannot be read (it is not written in Python); write a"),
    ],
)
def test_what_is_no_policy_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_of(text)
    _one_line(caught.value, message)


def _one_line(error: OnbeatError, message: str) -> None:
    assert message in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("call", "ours"),
    [
        (lambda: load_scheduler("nothing"), True),
        (lambda: Random([]), False),  # type: ignore[arg-type]  # this file calls it
        (lambda: policy_of([]), True),  # type: ignore[arg-type]
    ],
)
def test_who_raised_is_told_by_the_innermost_frame_outside_the_standard_library(
    call: Callable[[], object], ours: bool
) -> None:
    with pytest.raises((OnbeatError, TypeError, AttributeError)) as raised:
        call()
    assert is_ours(raised.value) is ours
