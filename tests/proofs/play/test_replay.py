"""Replaying scenarios: verdicts, what is printed, and exit codes."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onbeat.program import run
from onbeat_proofs.play.driver import Driver
from onbeat_proofs.play.replay import replay, window
from onbeat_proofs.play.table import step_table, step_text
from onbeat_proofs.scenarios.files import load_path, load_text, schema
from onbeat_proofs.scenarios.operations import Add, Expectation, Op, Pause, RemoteDone, Schedule
from onbeat_reference import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import PolicyError, ScenarioError
from onbeat_spec.records import Step

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"


class Ghost(Scheduler):
    """Raises from its second step on."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        if self.num_steps == 1:
            raise KeyError("ghost")
        return super().schedule(throttle_prefills)


@pytest.mark.parametrize("scenario", load_path(EXAMPLES), ids=lambda scenario: scenario.name)
def test_the_reference_does_what_the_examples_expect(scenario: Any) -> None:
    outcome = replay(scenario)
    assert outcome.complaints() == []
    assert outcome.holds


def test_the_examples_use_every_operation_and_every_expectation() -> None:
    text = "".join(file.read_text() for file in EXAMPLES.glob("*.yaml"))
    step = schema()["$defs"]["step"]["properties"]
    for name in ("abort: {id", *(step.keys() - {"expect"})):
        assert f"- {name}" in text, name
    for key in (field.name for field in fields(Expectation)):
        assert f"{key}: " in text, key


RUN = """
name: one
config: {num_blocks: 6, block_size: 4, max_num_batched_tokens: 8}
steps:
  - add: {id: a, prompt: 6, max_tokens: 3}
  - add: {id: b, prompt: 4, max_tokens: 3}
  - add: {id: c, prompt: 90}
  - schedule
  - schedule
  - check: {EXPECTED}
"""


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        ("scheduled: {a: 1, b: 2}", None),
        ("scheduled: {a: 1, b: 2, c: 0}", None),
        ("scheduled: {a: 1}", "scheduled: expected {a: 1}, seen {a: 1, b: 2}"),
        ("scheduled: {a: 1, b: {at_least: 3}}", "expected {a: 1, b: at least 3}, seen {a: 1, b: 2}"),
        ("scheduled: {}", "expected {}, seen {a: 1, b: 2}"),
        ("outputs: {a: 2}", None),
        ("outputs: {}", "outputs: expected {}, seen {a: 2, b: 1}"),
        ("computed: {a: {at_most: 7, at_least: 7}, b: 4}", None),
        ("computed: {a: {at_most: 6}}", "expected {a: at most 6}, seen {a: 7}"),
        ("running: [a, b], waiting: [], parked: [], preempted: [], loading: [], refused: [c]", None),
        ("running: [b, a]", "running: expected [b, a], seen [a, b]"),
        ("finished: {}", None),
        ("finished: {a: stop}", "finished: expected {a: stop}, seen {a: nothing}"),
        ("saturated: true", "saturated: expected true, seen false"),
        ("free_blocks: {at_least: 4}", "free_blocks: expected at least 4, seen 3"),
        ("tokens: {a: 7, b: 4}, prefill_tokens: 10, decode_tokens: 1, preemptions: {}, drafts: {}", None),
        ("first_chunk: {a: 0, b: 0}, first_output: {a: 0, b: 1}, max_waiting: 0", None),
        ("first_output: {c: 1}", "first_output: expected {c: 1}, seen {c: nothing}"),
    ],
)
def test_an_expectation_is_met_or_what_was_seen_is_said(expected: str, seen: str | None) -> None:
    (scenario,) = load_text(RUN.replace("EXPECTED", expected))
    complaints = replay(scenario).complaints()
    if seen is None:
        assert complaints == []
    else:
        (line,) = complaints
        assert line.startswith("step 1 (steps[5]): ")
        assert seen in line


def test_an_id_that_nobody_has_is_an_error_of_the_scenario() -> None:
    (scenario,) = load_text(RUN.replace("EXPECTED", "computed: {z: 1}"))
    with pytest.raises(ScenarioError, match=r"one: steps\[5\]: computed: no request 'z' has been added before"):
        replay(scenario)


def test_a_refutation_holds_only_if_it_comes() -> None:
    scenarios = load_path(EXAMPLES / "cadence.yaml")
    (refutation,) = [scenario for scenario in scenarios if scenario.violates]
    assert replay(refutation).holds
    steps = [step for step in refutation.steps if not isinstance(step, Schedule)]
    (line,) = replay(type(refutation)("n", violates=("no-empty-step",), steps=tuple(steps))).complaints()
    assert line == "it should violate no-empty-step, which held"


def test_a_crash_is_a_violation_and_ends_the_scenario() -> None:
    (scenario,) = load_text(RUN.replace("EXPECTED", "outputs: {a: 99}"))
    (line,) = replay(scenario, Ghost).complaints()
    assert line.startswith("step 0: violates no-crash: KeyError: 'ghost' at ")


def test_a_policy_is_found_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from onbeat_spec.policy import Policy\nclass Own(Policy): pass\n")
    (tmp_path / "s.yaml").write_text("name: n\nconfig: {policy: 'own.py:Own'}\nsteps: [schedule]\n")
    (scenario,) = load_path(tmp_path)
    assert replay(scenario).holds
    (tmp_path / "own.py").unlink()
    with pytest.raises(PolicyError, match="there is no file"):
        replay(scenario)


# --- The step table --------------------------------------------------------------------------------------------------


def history() -> Driver:
    config = Config(block_size=2, num_blocks=5, max_num_batched_tokens=8, num_draft_tokens=1)
    ops: list[Op] = [Add("a", 4, 4), Schedule(False), Add("[b]", 4, 9, remote_tokens=2), Schedule(True)]
    ops += [RemoteDone("[b]"), Schedule(False), Add("c", 4, 2), Schedule(True, accept={"a": 1})]
    ops += [Pause("new"), Schedule(True)]
    return Driver(config, monitor=False).run(ops)


def test_the_step_table_shows_every_step() -> None:
    lines = step_text(history().history).splitlines()
    assert lines[0].split() == ["step", "0", "1", "2", "3", "4"]
    assert [line.split()[0] for line in lines[1:5]] == ["mode", "a", "[b]", "c"]
    assert lines[-1].startswith("(tokens, +n of them drafts; H held, P preempted")


def test_the_step_table_is_also_a_rich_table() -> None:
    driver = history()
    console = Console(width=120)
    with console.capture() as capture:
        console.print(step_table(driver.history))
    rows = [line.replace("│", " ").split() for line in capture.get().splitlines()]
    for line in step_text(driver.history).splitlines()[1:-1]:
        assert line.split() in rows


def test_a_window_leads_to_its_step() -> None:
    turns = Driver(Config(), monitor=False).run([Schedule()] * 30).history
    assert [turn.step.index for turn in window(turns, 20, 4)] == [18, 19, 20, 21]
    assert [turn.step.index for turn in window(turns, 29, 3)] == [27, 28, 29]
    assert window([], 0) == []


# --- The program -----------------------------------------------------------------------------------------------------


def test_all_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(EXAMPLES / "saturation.yaml")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok      a saturated rank is not throttled",
        "ok      a saturated rank is not throttled, as first published",
        "2 scenarios: 2 hold, 0 failed",
    ]


def test_something_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(RUN.replace("EXPECTED", "saturated: true"))
    report = tmp_path / "report.json"
    assert run(["replay", str(tmp_path), "--json", str(report)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "FAILED  one: step 1 (steps[5]): saturated: expected true, seen false"
    assert [line.split() for line in lines[1:3]] == [["step", "0", "1"], ["mode", "·", "·"]]
    assert [line.split() for line in lines[3:5]] == [["a", "6", "1"], ["b", "2", "2"]]
    assert lines[-1] == "1 scenario: 0 hold, 1 failed"
    (scenario,) = json.loads(report.read_text())["scenarios"]
    assert scenario["holds"] is False
    assert scenario["failures"] == [
        {"step": 1, "where": "steps[5]", "key": "saturated", "expected": "true", "seen": "false"}
    ]


def test_a_scenario_that_cannot_be_run_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text("name: x\nsteps: [{abort: nobody}]\n---\nname: y\nsteps: [schedule]\n")
    assert run(["replay", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"ERROR   {tmp_path}/s.yaml: x: steps[0]: Abort: no request 'nobody' has been added before"
    assert lines[1:] == ["ok      y", "2 scenarios: 1 hold, 0 failed, 1 could not be run"]


def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nsteps: [schedule]\n")
    (tmp_path / "b.yaml").write_text("name: b\nsteps: [fly]\n")
    (tmp_path / "c.yaml").write_text("name: a\nsteps: [schedule]\n")
    (tmp_path / "d.yaml").write_text("name: d\nconfig: {policy: 'gone.py:Gone'}\nsteps: [schedule]\n")
    (tmp_path / "e.yaml").write_text("name: e\nsteps: [{schedule: {}, expect: {saturated: false}}]\n")
    target = tmp_path / "report.json"
    assert run(["replay", str(tmp_path), str(tmp_path / "none.yaml"), "--json", str(target)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:-1]] == ["ERROR"] * 3 + ["ok", "ERROR", "ok"]
    assert f"{tmp_path}/b.yaml, document 1 (b), line 2" in lines[0]
    assert f"c.yaml: the name 'a' is used in {tmp_path}/a.yaml already" in lines[1]
    assert "none.yaml: cannot be read" in lines[2]
    assert "there is no file" in lines[4]
    assert lines[-1] == "6 scenarios: 2 hold, 0 failed, 4 could not be run"
    assert len(json.loads(target.read_text())["errors"]) == 4
    (tmp_path / "e.yaml").write_text("name: e\nsteps: [{schedule: {}, expect: {saturated: true}}]\n")
    assert run(["replay", str(tmp_path)]) == 1


def test_what_was_never_put_to_the_test_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(
        "name: n\ninvariants: [slots, budget]\nsteps: [schedule]\n---\nname: e\nsteps: []\n"
    )
    assert run(["replay", "-q", str(tmp_path)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("VACUOUS n: slots was never put to the test (never seen: all slots were taken")
    assert "; budget was never put to the test (" in lines[0]
    assert lines[1:] == ["VACUOUS e: it has no step", "2 scenarios: 0 hold, 0 failed, 2 vacuous"]
    (tmp_path / "s.yaml").write_text("name: n\ninvariants: [slots, budget]\nsteps: [schedule]\n")
    assert run(["replay", str(tmp_path), "--allow-vacuous", "slots"]) == 2
    assert run(["replay", str(tmp_path), "--allow-vacuous", "slots", "--allow-vacuous", "budget"]) == 0
    assert run(["replay", str(tmp_path), "--allow-vacuous", "slot"]) == 2
    assert "there is no invariant slot;" in capsys.readouterr().err


def test_a_crash_that_is_meant_is_no_missing_step(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "from onbeat_reference import Scheduler\n\n"
        "class Wrong(Scheduler):\n    def schedule(self, throttle_prefills=False):\n        raise OSError('gone')\n"
    )
    (tmp_path / "s.yaml").write_text("name: n\nviolates: [no-crash]\nsteps: [schedule]\n")
    assert run(["replay", str(tmp_path / "s.yaml"), "--scheduler", f"{tmp_path}/wrong.py:Wrong"]) == 0


def test_no_scenario_of_the_suite_is_vacuous(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "-q", str(EXAMPLES.parent)]) == 0
    assert "VACUOUS" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["EXAMPLES", "--scheduler", "onbeat_reference"], "it must be module:Class"),
        (["EXAMPLES", "--policy", "fifo"], "policy is 'fifo'"),
        ([], "Missing argument"),
    ],
)
def test_what_cannot_be_read_exits_2(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *(str(EXAMPLES) if arg == "EXAMPLES" else arg for arg in args)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


WRONG = """
from onbeat_reference import Scheduler

class Wrong(Scheduler):
    def resume(self):
        raise OSError("gone")
"""


def test_another_scheduler_and_another_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    target = f"{tmp_path}/wrong.py:Wrong"
    assert run(["replay", "-q", str(EXAMPLES / "requests.yaml"), "--scheduler", target]) == 1
    out = capsys.readouterr().out
    assert "FAILED  a pause admits nobody, or stops everything: step 2: violates no-crash: OSError: gone at" in out
    assert run(["replay", "-q", str(EXAMPLES / "remote.yaml"), "--policy", "local-work"]) == 1
    assert "expected {d: 1, r: 32}, seen {d: 1}" in capsys.readouterr().out


def test_verbose_shows_a_table_for_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "-v", str(EXAMPLES / "saturation.yaml")]) == 0
    assert sum(line.split()[:1] == ["step"] for line in capsys.readouterr().out.splitlines()) == 2
