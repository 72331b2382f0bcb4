"""The program `onbeat`: verbs found by entry points, errors and exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from onbeat import program

VERBS = '''
import sys
import click
from onbeat_spec.errors import ConfigError, OnbeatError

@click.command()
@click.argument("what")
@click.pass_context
def command(ctx, what):
    """Do WHAT it is told. The rest of the text is not for the list."""
    match what:
        case "refuse":
            raise ConfigError("interval is 0;\\n  give at least 1")
        case "refuse-mutely":
            raise OnbeatError
        case "interrupt":
            raise KeyboardInterrupt
        case "crash":
            raise ZeroDivisionError("a bug")
        case "bad-usage":
            raise click.BadParameter("no such budget")
        case "no-file":
            raise click.FileError("x.yaml", "cannot be read")
        case "deny":
            open("/nonexistent/x.yaml")
        case "end-of-file":
            raise EOFError
        case "flood":
            for _ in range(100_000):
                print("a line that nobody reads")
        case _ if what.startswith("exit-"):
            ctx.exit(int(what[5:]))
        case _ if what.startswith("sys-exit-"):
            sys.exit(int(what[9:]))
        case _ if what.startswith("return-"):
            return int(what[7:])
'''

ENTRY_POINTS = """
[onbeat.commands]
do = fake_verbs:command
broken = fake_broken:command
hollow = fake_verbs:VALUE
"""

ONBEAT = [sys.executable, "-c", "from onbeat.program import main; main()"]


@pytest.fixture
def other_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package of somebody else that adds verbs to the program."""
    (tmp_path / "fake_verbs.py").write_text(VERBS + "\nVALUE = 1\n")
    (tmp_path / "fake_broken.py").write_text("import a_module_that_is_nowhere\ndef command():\n    '''Serve.'''\n")
    info = tmp_path / "fake_verbs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-verbs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(":"))


def onbeat(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ONBEAT, *args], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    ("what", "code"),
    [("exit-0", 0), ("exit-1", 1), ("exit-2", 2), ("sys-exit-1", 1), ("return-1", 1), ("return-0", 0), ("nothing", 0)],
)
def test_a_verb_keeps_its_exit_code(what: str, code: int) -> None:
    result = onbeat("do", what)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", "")


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("refuse", "onbeat: error: interval is 0; give at least 1\n"),
        ("refuse-mutely", "onbeat: error: OnbeatError\n"),
        ("deny", "onbeat: error: [Errno 2] No such file or directory: '/nonexistent/x.yaml'\n"),
    ],
)
def test_an_error_is_one_line_and_exits_2(what: str, line: str) -> None:
    result = onbeat("do", what)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)


@pytest.mark.usefixtures("other_package")
@pytest.mark.parametrize(
    "args", [(), ("do",), ("do", "bad-usage"), ("do", "no-file"), ("no-such-verb",), ("--no-such",)]
)
def test_misuse_exits_2_without_a_traceback(args: tuple[str, ...]) -> None:
    result = onbeat(*args)
    assert result.returncode == 2
    assert result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("other_package")
def test_a_crash_is_no_verdict() -> None:
    """Python itself would exit with 1, which here says that something is violated."""
    result = onbeat("do", "crash")
    assert result.returncode == 2
    assert "ZeroDivisionError: a bug" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("onbeat: error: this is an error of onbeat itself")


@pytest.mark.usefixtures("other_package")
def test_an_interrupt_exits_130_and_an_end_of_file_does_not() -> None:
    interrupted, ended = onbeat("do", "interrupt"), onbeat("do", "end-of-file")
    assert interrupted.returncode == 130
    assert "Traceback" not in interrupted.stderr
    assert (ended.returncode, ended.stderr.strip()) == (2, "onbeat: error: EOFError")


@pytest.mark.usefixtures("other_package")
def test_a_reader_that_goes_away_is_no_verdict() -> None:
    with subprocess.Popen([*ONBEAT, "do", "flood"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=120) == 141


@pytest.mark.usefixtures("other_package")
def test_a_verb_that_cannot_be_loaded_says_what_it_needs() -> None:
    broken, hollow = onbeat("broken"), onbeat("hollow")
    assert broken.returncode == hollow.returncode == 2
    assert broken.stderr.startswith("onbeat: error: the verb 'broken' needs the module 'a_module_that_is_nowhere'")
    assert hollow.stderr == "onbeat: error: the verb 'hollow' is fake_verbs:VALUE, which is no click command\n"


@pytest.mark.usefixtures("other_package")
def test_the_help_lists_every_verb_also_one_that_cannot_be_loaded() -> None:
    result = onbeat("--help")
    assert result.returncode == 0
    assert re.search(r"^  do +Do WHAT it is told\.?$", result.stdout, re.MULTILINE)
    assert re.search(r"^  broken +Serve\.?$", result.stdout, re.MULTILINE)
    assert {"spec", "prove", "replay", "audit"} <= {line.split()[0] for line in result.stdout.splitlines() if line}


def test_the_help_loads_no_solver() -> None:
    script = """
import sys
from onbeat.program import run
assert run(["--help"]) == 0
print("loaded:", *sorted({"z3", "hypothesis"} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].strip() == "loaded:"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["--version"]) == 0
    assert re.fullmatch(r"onbeat \d+\.\d+\.\d+\n", capsys.readouterr().out)
