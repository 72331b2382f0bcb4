"""`onbeat mutate`: what it passes on, prints, writes and exits with. The mutants are test_notice's."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onbeat_proofs.mutants import notice, plant, protocol
from onbeat_proofs.mutants.notice import MutantResult
from onbeat_proofs.verbs.mutate import command
from onbeat_spec.errors import NotReproduced

KILLED = MutantResult(
    "policy.py:Policy.lifts:boundary: a",
    "onbeat_spec/policy.py",
    12,
    "Policy.lifts",
    "boundary",
    "return x[0] < 1",
    "return x[0] <= 1",
    verdict="killed",
    killed_by="theorem no-empty-step/lift: refuted",
    message="an empty step",
    seconds=0.5,
)
EQUAL = replace(KILLED, id="b", line=13, verdict="equivalent", killed_by="", message="says the same")
HOLE = replace(KILLED, id="c", line=14, verdict="survived", killed_by="", message="")
Run = Callable[..., Result]


@pytest.fixture
def asked() -> dict[str, Any]:
    return {}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> Run:
    """Run the verb; what became of the mutants is given."""

    def given(*args: str, results: list[MutantResult]) -> Result:
        def all_of_them(**options: Any) -> list[MutantResult]:
            options.pop("progress")("theorems", 1, 2)
            asked.update(options)
            return results

        monkeypatch.setattr(notice, "run", all_of_them)
        return CliRunner().invoke(command, args, standalone_mode=False, env={"COLUMNS": "160"})

    return given


def test_all_are_noticed_or_equal(run: Run, asked: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    result = run("--json", str(file), "--workers", "3", results=[KILLED, EQUAL, replace(KILLED, id="d")])
    assert result.return_value == 0
    assert asked == {"workers": 3}
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["mutant", "change", "verdict", "by"]
    assert lines[1].split("  ")[0] == "policy.py:12 Policy.lifts"
    assert "return x[0] < 1 -> return x[0] <= 1" in lines[1]  # brackets are no markup
    assert lines[1].endswith("theorem no-empty-step/lift: refuted")
    assert lines[-2:] == ["3 mutants: 2 killed, 1 equivalent", "killed by theorem no-empty-step/lift 2"]
    assert json.loads(file.read_text()) == {"mutants": [asdict(KILLED), asdict(EQUAL), asdict(KILLED) | {"id": "d"}]}


def test_one_that_nothing_notices_is_a_violation(run: Run, asked: dict[str, Any]) -> None:
    result = run(results=[KILLED, HOLE])
    assert result.return_value == 1
    assert asked == {"workers": 2}
    assert "2 mutants: 1 killed, 1 survived" in result.stdout


def test_a_check_that_fails_on_the_text_as_it_is_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**options: Any) -> list[MutantResult]:
        raise NotReproduced("a check fails on the text as it is")

    monkeypatch.setattr(notice, "run", fails)
    result = CliRunner().invoke(command, [], standalone_mode=False)
    assert isinstance(result.exception, NotReproduced)  # the program makes it one line, and exit code 2


def test_mutants_of_both_texts(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    mutant = plant.mutants(protocol.MODULES)[0]
    monkeypatch.setattr(protocol, "run", lambda progress: [protocol.ProtocolMutantResult(mutant, "theorem", "no")])
    result = run("all", "--json", str(file), results=[KILLED])
    assert result.return_value == 0
    both = json.loads(file.read_text())
    assert [each["id"] for each in both["policy"]] == [KILLED.id]
    assert both["protocol"] == [{"id": mutant.id, "by": "theorem", "message": "no"}]
    monkeypatch.setattr(protocol, "run", lambda progress: [protocol.ProtocolMutantResult(mutant, "")])
    assert run("all", results=[KILLED]).return_value == 1
    assert run("policy", results=[KILLED]).return_value == 0


def test_workers_are_for_the_policy_only() -> None:
    result = CliRunner().invoke(command, ["protocol", "--workers", "2"])
    assert result.exit_code == 2
    assert "--workers has no effect on mutants of the protocol" in result.output
