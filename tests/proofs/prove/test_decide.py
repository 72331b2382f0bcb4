"""`onbeat prove` and `onbeat spec`, as they are called."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onbeat.program import main
from onbeat_proofs.foreign.policies import policy_of
from onbeat_proofs.play.two_runs import replay_runs
from onbeat_proofs.prove.decide import withdraw
from onbeat_proofs.prove.ledger import START, THEOREMS
from onbeat_proofs.prove.states import Shape
from onbeat_proofs.prove.sweep import sweep
from onbeat_proofs.prove.theorem import TheoremVerdict, decide
from onbeat_proofs.scenarios.files import load_path
from onbeat_proofs.verbs.prove import command as prove_command
from onbeat_proofs.verbs.spec import command as spec_command
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.policy import POLICIES, Policy

GOOD = '''
from onbeat_spec.policy import Policy


class Same(Policy):
    """The same decisions, written differently."""

    name = "same"

    def grant(self, *, work: int, budget: int, cap: int) -> int:
        return min(work, budget, cap)
'''

BAD = '''
from onbeat_spec.policy import Policy


class Eager(Policy):
    """Lets short prompts in, and resumes only if they are short."""

    name = "eager"

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        return work > 64
'''


def test_all_policies(tmp_path: Path) -> None:
    """Every theorem and every quick shape, under all built-in policies: the main job."""
    file = tmp_path / "verdicts.json"
    args = ["--json", str(file), "--scenarios", str(tmp_path / "found")]
    result = CliRunner().invoke(prove_command, args, standalone_mode=False)
    assert result.return_value == 0, result.output
    theorems = json.loads(file.read_text())["theorems"]
    assert {row["policy"] for row in theorems} == {"onbeat", "pr44558", "local-work"}
    assert all(row["verdict"] == row["expected"] for row in theorems)
    assert all(row["verdict"] == "proved" for row in theorems if row["policy"] == "onbeat")
    assert {(row["policy"], row["id"]) for row in theorems} >= {
        (name, each.id) for name in POLICIES for each in THEOREMS
    }
    assert all(row["message"] for row in theorems if row["verdict"] == "refuted")
    assert set(theorems[0]) >= {"id", "policy", "strength", "verdict", "expected", "seconds", "paths"}
    assert all(row["paths"] > 0 and row["seconds"] >= 0 for row in theorems)
    scenarios = load_path(tmp_path / "found")
    assert len(scenarios) >= 10
    for scenario in scenarios:
        assert {v.invariant for v in replay_runs(scenario).violations} >= set(scenario.violates)


def test_a_policy_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(BAD)
    result = CliRunner().invoke(prove_command, ["bad.py:Eager", "--scenarios", "found"], standalone_mode=False)
    assert result.return_value == 1, result.output
    assert "eager: order-kept/step: refuted: fresh prefill w1 was admitted before the older w0" in result.output
    assert "violates: [order-kept]" in result.output
    assert "step  0" in result.output
    scenarios = load_path(Path("found"))
    assert {"order-kept/step under eager", "resume-bypasses/step under eager"} <= {s.name for s in scenarios}
    for scenario in scenarios:
        assert {v.invariant for v in replay_runs(scenario).violations} >= set(scenario.violates)


def test_an_equal_policy_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.py").write_text(GOOD)
    policy = policy_of("good.py:Same", tmp_path)()
    assert [v.id for v in (decide(theorem, policy) for theorem in THEOREMS) if v.verdict != "proved"] == []
    assert not sweep(Shape(1, ("fresh|resume",)), policy).refuted


def test_what_rests_on_start_states_is_withdrawn_where_they_are_not_proved() -> None:
    """A policy that ignores promises leaves states in which no proof of a step begins."""

    class IgnoresPromises(Policy):
        name = "ignores-promises"

        def fits_whole(self, *, needed: int, free: int, promised: int) -> bool:
            return needed <= free

    chosen = [t for t in THEOREMS if t.id in ("budget/turn", "off-means-off/decision", "full-sequence-fits/admit")]
    verdicts = {theorem.id: decide(theorem, IgnoresPromises()) for theorem in chosen}
    before = {id: verdict.verdict for id, verdict in verdicts.items()}
    assert before["budget/turn"] == before["off-means-off/decision"] == "proved"
    withdraw(list(verdicts.values()))
    assert {id: verdict.verdict for id, verdict in verdicts.items()} == {
        "budget/turn": "unknown",
        "off-means-off/decision": "proved",
        "full-sequence-fits/admit": "refuted",
    }
    assert "full-sequence-fits/admit is refuted" in verdicts["budget/turn"].message


def test_nothing_is_withdrawn_otherwise() -> None:
    verdicts = [
        TheoremVerdict(id, "p", "", "proved", "proved", from_start_state=True) for id in (*START, "budget/turn")
    ]
    verdicts.append(TheoremVerdict("order-kept/step", "p", "", "proved", "refuted", from_start_state=True))
    withdraw(verdicts)
    assert {verdict.verdict for verdict in verdicts[:-1]} == {"proved"}


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("class X(", "SyntaxError"),
        (BAD.replace("return work > 64", "return work % 7 > budget"), "budget"),
        (BAD.replace("return work > 64", "return {1: True}[work]"), "dictionary key"),
        (BAD.replace("return work > 64", "return 64 / work > 1"), "bad.py:11"),
    ],
)
def test_a_policy_that_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text(source)
    monkeypatch.setattr("sys.argv", ["onbeat", "prove", "bad.py:Eager"])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1, error


def test_the_catalogue_is_printed() -> None:
    result = CliRunner().invoke(spec_command, [], standalone_mode=False)
    assert result.return_value == 0, result.output
    for id in CATALOGUE:
        assert id in result.output


@pytest.mark.parametrize("id", CATALOGUE)
def test_one_invariant_is_printed_whole(id: str) -> None:
    result = CliRunner().invoke(spec_command, [id], standalone_mode=False)
    assert result.return_value == 0, result.output
    for part in (CATALOGUE[id].statement.split()[0], "predicates", "def ", "checks", "cases"):
        assert part in result.output


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [
        (["--group"], "onbeat protocol"),
        (["--group", "x.group.yaml", "--deep"], "onbeat protocol"),
        (["--group", "--html", "x"], "onbeat protocol"),
        (["--html=x"], "onbeat protocol --html FILE"),
        (["--mutants", "--workers=2"], "onbeat mutate"),
        (["--group", "--mutants"], "onbeat mutate protocol"),
    ],
)
def test_options_that_became_verbs_are_refused(arguments: list[str], verb: str) -> None:
    result = CliRunner().invoke(prove_command, arguments)
    assert result.exit_code == 2
    assert f"`{verb}`" in " ".join(result.output.split())
    assert "--group" not in CliRunner().invoke(prove_command, ["--help"]).output
