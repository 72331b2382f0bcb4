"""Where classes and functions are written."""

from pathlib import Path
from typing import Any

from onbeat_proofs.foreign.location import source_of
from onbeat_proofs.foreign.targets import load_class
from onbeat_reference import Scheduler
from onbeat_spec.errors import NotAScheduler

TEXT = '''"""A module."""
from onbeat_reference import Scheduler


class Mine(Scheduler):
    """Mine."""

    borrowed = Scheduler.update

    def schedule(self, throttle_prefills=False):
        return super().schedule(throttle_prefills)

    @property
    def num_slots(self):
        return 1

    @staticmethod
    def plain():
        return 2
'''


def test_a_class_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TEXT)
    source = source_of(load_class(f"{tmp_path}/mine.py:Mine", "scheduler", NotAScheduler))
    assert source is not None
    assert source.file == str(tmp_path / "mine.py")
    assert source.line == 5
    assert source.methods == {"schedule": 10, "num_slots": 13, "plain": 17}


def make(config: Any, policy: Any) -> Scheduler:
    return Scheduler(config, policy)


def test_a_function() -> None:
    source = source_of(make)
    assert source is not None
    assert Path(source.file) == Path(__file__)
    assert Path(__file__).read_text().splitlines()[source.line - 1].startswith("def make")


def test_what_has_no_file() -> None:
    namespace: dict[str, Any] = {"__name__": "nowhere"}
    exec("class Mine: pass", namespace)
    assert source_of(namespace["Mine"]) is None
    assert source_of(3) is None
    assert source_of(dict) is None
