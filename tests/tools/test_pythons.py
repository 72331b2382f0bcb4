"""Which interpreters are found and checked, and what is said of one that is missing or fails."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.pythons import MODEL, TESTS, interpreter, main
from tools.vllm_env import Done


class Machine:
    """A machine with some interpreters: each path answers with a version, or cannot be run."""

    def __init__(self, root: Path, versions: dict[str, str]) -> None:
        self.root, self.versions = root, versions
        self.environment = {"PATH": str(root / "bin")}
        self.commands: list[list[str]] = []
        self.fails = "nothing"
        for path in versions:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch(mode=0o755)

    def __call__(self, command: Sequence[str]) -> Done:
        self.commands.append(list(command))
        if command[0] == "pyenv":
            return Done(0, f"{self.root / 'pyenv'}\n")
        if "-c" in command[1:2]:
            version = self.versions[str(Path(command[0]).relative_to(self.root))]
            return Done(0, version + "\n") if version else Done(127, "pyenv: command not found\n")
        if self.fails in " ".join(command):
            return Done(1, "Collecting x\nERROR: ResolutionImpossible\n")
        return Done(0, "......\n6 passed in 1.00s\n")


def test_the_path_comes_first_and_a_shim_may_stand_for_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"bin/python3.12": "3.12", "pyenv/versions/3.12.4/bin/python": "3.12"})
    assert interpreter("3.12", machine.environment, machine) == str(tmp_path / "bin" / "python3.12")
    machine.versions["bin/python3.12"] = ""
    assert interpreter("3.12", machine.environment, machine) is None
    environment = machine.environment | {"PYENV_ROOT": str(tmp_path / "pyenv")}
    assert interpreter("3.12", environment, machine) == str(tmp_path / "pyenv/versions/3.12.4/bin/python")
    (tmp_path / "bin" / "pyenv").touch(mode=0o755)
    assert interpreter("3.12", machine.environment, machine) == str(tmp_path / "pyenv/versions/3.12.4/bin/python")


def test_the_newest_of_several_is_taken(tmp_path: Path) -> None:
    paths = [f"pyenv/versions/3.13.{patch}/bin/python" for patch in (9, 10, 0)]
    machine = Machine(tmp_path, dict.fromkeys(paths, "3.13"))
    found = interpreter("3.13", machine.environment | {"PYENV_ROOT": str(tmp_path / "pyenv")}, machine)
    assert found == str(tmp_path / paths[1])


def test_both_are_resolved_and_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {"bin/python3.12": "3.12", "bin/python3.13": "3.13"})
    assert main(tmp_path, machine, machine.environment) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Python 3.12: the pins resolve",
        "Python 3.12: 6 passed in 1.00s",
        "Python 3.13: the pins resolve",
        "Python 3.13: 6 passed in 1.00s",
        "Python 3.12 passed",
        "Python 3.13 passed",
    ]
    dry = [command for command in machine.commands if "--dry-run" in command]
    assert [command[-1] for command in dry] == [".[dev,engine,structured]", MODEL] * 2
    assert all("constraints.txt" in command for command in dry)
    assert sum(command[-len(TESTS) :] == list(TESTS) for command in machine.commands) == 2


@pytest.mark.parametrize(("fails", "step"), [("--dry-run", "resolution"), ("pytest -q", "tests"), ("venv", "virtual")])
def test_what_fails_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: str, step: str) -> None:
    machine = Machine(tmp_path, {"bin/python3.13": "3.13"})
    machine.fails = fails
    assert main(tmp_path, machine, machine.environment) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "Python 3.12 SKIPPED: no interpreter on the PATH or among pyenv's versions" in lines
    assert lines[-1].startswith(f"Python 3.13 FAILED: {step}")
    assert lines[-1].endswith("ERROR: ResolutionImpossible")


def test_a_machine_without_any_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {})
    assert main(tmp_path, machine, machine.environment) == 3
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["SKIPPED:"] * 2
