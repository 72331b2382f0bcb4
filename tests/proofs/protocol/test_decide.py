"""`onbeat protocol`: what it prints and writes, and its exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from onbeat_proofs.mutants import plant, protocol
from onbeat_proofs.play.suite import suite_path
from onbeat_proofs.protocol import decide, drawing
from onbeat_proofs.protocol.decide import GroupProof
from onbeat_proofs.protocol.explore import explore
from onbeat_proofs.protocol.faults import FAULTS, Fault
from onbeat_proofs.protocol.replay import replay
from onbeat_proofs.protocol.scenario import load, load_text
from onbeat_proofs.protocol.state import GroupScope
from onbeat_proofs.protocol.theorems import balance, balance_faults, group
from onbeat_proofs.protocol.theorems.balance_faults import BALANCE_FAULTS, BalanceFault
from onbeat_proofs.verbs import protocol as verb
from onbeat_proofs.verbs.mutate import command as mutate
from onbeat_proofs.verbs.protocol import command

TINY = (GroupScope(requests=1, controls=1), GroupScope(requests=1, controls=2, prompt=True))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "QUICK", TINY)


def reported_faults() -> list[Fault | BalanceFault]:
    """Return every fault that has a public report, in the order in which they are printed."""
    return [fault for fault in (*FAULTS, *BALANCE_FAULTS) if fault.case]


@pytest.mark.usefixtures("tiny")
def test_all_is_printed_and_written(tmp_path: Path) -> None:
    files = [f"--{name}={tmp_path / name}" for name in ("json", "html", "scenarios")]
    result = CliRunner().invoke(command, files, standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 0)
    assert f"{len(FAULTS) + len(BALANCE_FAULTS)} planted faults: nothing wrong" in result.output
    assert "balance/spread-pair all sizes proved" in [" ".join(line.split()) for line in result.output.splitlines()]
    planted = [" ".join(line.split()) for line in result.output.splitlines() if line.startswith("B")]
    assert [each.says in line for each, line in zip(reported_faults(), planted, strict=True)] == [True] * len(planted)
    report = json.loads((tmp_path / "json").read_text())
    assert [each["scope"] for each in report["scopes"]] == [str(scope) for scope in TINY]
    assert all(each["violates"] is None and each["states"] > 50 for each in report["scopes"])
    assert {each["verdict"] for each in report["theorems"]} == {"proved"}
    theorems = [*group.THEOREMS, *balance.THEOREMS]
    assert [each["id"] for each in report["theorems"]] == [theorem.id for theorem in theorems]
    cases = [*(fault.case or None for fault in FAULTS), *(fault.case for fault in BALANCE_FAULTS)]
    assert [each["case"] for each in report["planted"]] == cases
    assert all(each["violates"] for each in report["planted"])
    assert report["wrong"] == []
    page = (tmp_path / "html").read_text()
    assert page.count("<svg") == page.count("</svg>") == len(FAULTS)
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")
    scenarios = load(tmp_path / "scenarios")
    assert len(scenarios) == len(FAULTS)
    by_name = {fault.says: fault for fault in FAULTS}
    assert all(replay(each, by_name[each.name].text).right for each in scenarios)


def test_what_is_wrong_decides_the_exit_code() -> None:
    fault = FAULTS[0]
    found = explore(fault.scope, fault.text)
    assert GroupProof().exit_code == 0
    assert GroupProof(explored=[found]).exit_code == 1
    assert GroupProof(planted=[(fault, found)]).exit_code == 0
    assert GroupProof(planted=[(fault, explore(TINY[0]))]).exit_code == 1
    (wrong, refuted), *_ = balance_faults.verdicts()
    assert GroupProof(unbalanced=[(wrong, refuted)]).exit_code == 0
    assert GroupProof(unbalanced=[(wrong, replace(refuted, verdict="proved"))]).exit_code == 1
    assert GroupProof(unbalanced=[(wrong, replace(refuted, verdict="unknown"))]).exit_code == 2
    undecided = explore(GroupScope(), most=100)
    assert GroupProof(explored=[undecided]).exit_code == 2
    assert GroupProof(explored=[undecided, found]).exit_code == 1


def test_other_ends_at_rest_are_a_violation() -> None:
    one, other = (explore(scope) for scope in decide.BASE[:2])
    other.at_rest.pop()
    assert [message for _, message in GroupProof(explored=[one, other]).wrong()] == [
        "sync-interval-free: what the ranks come to rest with depends on sync"
    ]


def test_scenarios_are_replayed(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(suite_path() / "group")], standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 0)
    assert "as they say" in result.output
    wrong = tmp_path / "x.group.yaml"
    wrong.write_text(
        "name: x\nconfig: {ranks: 1}\nsteps: [check: {phase: 1}]\n---\n"
        "name: y\nviolates: [wake-not-lost]\nconfig: {ranks: 1}\nsteps: []\n"
    )
    report = tmp_path / "report.json"
    result = CliRunner().invoke(command, [str(wrong), "--json", str(report)], standalone_mode=False)
    assert result.return_value == 1
    assert "x: step 0: phase is 0, not 1" in result.output
    assert "y: does not violate wake-not-lost" in result.output
    assert [each["right"] for each in json.loads(report.read_text())] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.group.yaml", "--deep"], "--deep has no effect on scenarios that are replayed"),
        (["x.group.yaml", "--deep", "--html=y"], "--deep, --html has no effect on scenarios that are replayed"),
        (["x.group.yaml", "--scenarios=y"], "--scenarios has no effect"),
    ],
)
def test_options_that_would_do_nothing_are_refused(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_a_violation_is_shown_as_a_chart_and_as_a_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = next(fault for fault in FAULTS if fault.case == "B77")
    found = explore(fault.scope, fault.text)
    monkeypatch.setattr(verb, "prove", lambda *_: GroupProof(explored=[found]))
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert result.return_value == 1
    assert "front end               rank 0" in result.output
    (scenario,) = load_text(result.output.partition("\n# ")[2].partition("\n")[2].partition("\n\n")[0])
    assert replay(scenario, fault.text).right


def test_a_drawing_shows_messages_and_turns() -> None:
    fault = next(fault for fault in FAULTS if fault.case == "B81")
    drawn = drawing.svg(explore(fault.scope, fault.text))
    assert drawn.count('class="arrow"') == 2
    assert drawn.count('class="turn"') == 3
    assert ">front end<" in drawn
    assert ">rank 1<" in drawn


def test_mutants_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    some = [each for each in plant.mutants(protocol.MODULES) if each.function in ("stop", "publish")]
    assert len(some) > 10
    results = [protocol.try_one(each) for each in some]
    assert all(result.by and result.message for result in results)
    monkeypatch.setattr(protocol, "run", lambda progress: results)
    report = tmp_path / "report.json"
    result = CliRunner().invoke(mutate, ["protocol", f"--json={report}"], standalone_mode=False)
    assert (result.exception, result.return_value) == (None, 0)
    assert f"{len(some)} mutants, 0 survived" in result.output
    assert [each["id"] for each in json.loads(report.read_text())["mutants"]] == [each.id for each in some]
    monkeypatch.setattr(protocol, "run", lambda progress: [protocol.ProtocolMutantResult(some[0], "")])
    assert CliRunner().invoke(mutate, ["protocol"], standalone_mode=False).return_value == 1


def test_the_text_is_as_it_was_after_a_mutant() -> None:
    assert explore(TINY[0]).invariant == ""
    ids = {each.id for each in plant.mutants(protocol.MODULES)}
    assert set(protocol.EQUIVALENT) <= ids
