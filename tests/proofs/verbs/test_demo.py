"""`onbeat demo`: one table from the proofs, the tests and the arrivals. The proofs themselves are test_prove's."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from onbeat_proofs.audit.results import AuditReport
from onbeat_proofs.audit.run import audit
from onbeat_proofs.prove.decide import Proof
from onbeat_proofs.prove.theorem import FOR_ALL, TheoremVerdict
from onbeat_proofs.verbs import demo as cmd_demo
from onbeat_reference import Scheduler
from onbeat_reference.workload import Arrival, builtin
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.errors import WorkloadError
from onbeat_spec.policy import POLICIES
from onbeat_spec.records import Violation

SWEPT = "for all values: 2 running"
VERDICTS = (
    TheoremVerdict("decode-never-held/turn", "onbeat", FOR_ALL, "proved", "proved", about="turn"),
    TheoremVerdict("one-place/step", "onbeat", SWEPT, "proved", "proved"),
    TheoremVerdict("no-empty-step/step", "pr44558", SWEPT, "refuted", "refuted"),
)
ARRIVALS = [Arrival(0.0, 300, 5), Arrival(0.5, 7, 40), Arrival(0.75, 40_000, 2)]
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0,300,5
2023-11-16 18:15:46.5,7,40
2023-11-16 18:15:46.75,40000,2
"""
Demo = Callable[..., Result]


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """What the real audit says of the reference under three arrivals."""
    return audit(Scheduler, name=cmd_demo.REFERENCE, arrivals=ARRIVALS)


@pytest.fixture
def asked() -> dict[str, Any]:
    """What proofs and audit were asked for."""
    return {}


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: AuditReport, asked: dict[str, Any]) -> Demo:
    """Run the verb in a folder with a small trace; proofs and audit are given."""
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)

    def run(*args: str, proof: Proof | None = None, report: AuditReport = report) -> Result:
        def prove(policies: tuple[str, ...], **options: Any) -> Proof:
            options["progress"]("a theorem", 1, 2)
            asked["policies"] = policies
            return proof or Proof(list(VERDICTS), 1.25)

        def given(scheduler: type, **options: Any) -> AuditReport:
            options.pop("progress")("search", 0, 0)
            asked.update(options, scheduler=scheduler)
            return report

        monkeypatch.setattr(cmd_demo, "prove", prove)
        monkeypatch.setattr(cmd_demo, "audit", given)
        return CliRunner().invoke(cmd_demo.command, args, standalone_mode=False)

    return run


def rows(result: Result) -> dict[str, list[str]]:
    """The cells of the table, by invariant."""
    table = result.stdout.split("\n\n", maxsplit=1)[0].splitlines()[1:]
    return {line.split()[0]: re.split(r" {2,}", line.strip())[1:] for line in table}


def test_everything_holds(demo: Demo, asked: dict[str, Any], report: AuditReport) -> None:
    result = demo("--workload", "trace.csv", "--interval", "3")
    assert result.return_value == 0, result.stdout
    table = rows(result)
    assert list(table) == list(CATALOGUE)
    assert {cells[-1] for cells in table.values()} == {"holds"}
    counts = next(row.counts for row in report.rows if row.invariant == "one-place")
    assert table["one-place"] == [
        "steps",
        *(f"{counts[check]:,}" for check in ("suite", "search", "random")),
        "clean",
        "holds",
    ]
    assert table["decode-never-held"][0] == "parts*"
    assert table["no-empty-step"][0] == "(tested)"  # proved for no policy of ours: the verdict is pr44558's
    assert table["saturation-opens"][-2] == "-"
    assert "proofs: 3 verdicts on 3 policies, 3 as expected, 1 of them the expected refutations" in result.stdout
    assert re.search(r"^suite: \d+ scenarios, 0 failed$", result.stdout, re.MULTILINE)
    assert "trace: 3 requests, 3 finished, 0 refused, 0 lost, " in result.stdout
    assert asked == {
        "policies": tuple(POLICIES),
        "scheduler": Scheduler,
        "name": cmd_demo.REFERENCE,
        "arrivals": ARRIVALS,
        "interval": 3,
    }


def test_the_built_in_arrivals_are_the_default(demo: Demo, asked: dict[str, Any]) -> None:
    assert demo().return_value == 0
    assert asked["arrivals"] == builtin()
    assert asked["interval"] == 2


def test_arrivals_that_cannot_be_read_are_refused_before_any_work(demo: Demo, asked: dict[str, Any]) -> None:
    result = demo("--workload", "nowhere.csv")
    assert isinstance(result.exception, WorkloadError)
    assert asked == {}


@pytest.mark.parametrize(("seen", "code"), [("refuted", 1), ("unknown", 2)])
def test_a_proof_that_is_missing(demo: Demo, seen: str, code: int) -> None:
    wrong = replace(VERDICTS[1], verdict=seen)
    result = demo("--workload", "trace.csv", proof=Proof([VERDICTS[0], wrong, VERDICTS[2]]))
    assert result.return_value == code
    assert {id for id, cells in rows(result).items() if cells[-1] != "holds"} == {"one-place"}
    assert rows(result)["one-place"][-1] == "unproved"
    assert "3 verdicts on 3 policies, 2 as expected" in result.stdout


def test_an_invariant_that_was_not_put_to_the_test(demo: Demo, report: AuditReport) -> None:
    verdicts = [row._replace(verdict="vacuous") if row.invariant == "budget" else row for row in report.rows]
    result = demo(report=replace(report, rows=verdicts))
    assert result.return_value == 2
    assert rows(result)["budget"][-1] == "vacuous"


def test_a_violation_outweighs_what_is_not_known(demo: Demo, report: AuditReport) -> None:
    assert report.workload is not None
    workload = replace(report.workload, violations=(Violation("budget", 3, "too much"),) * 2)
    unknown = Proof([replace(VERDICTS[0], verdict="unknown")])
    result = demo(proof=unknown, report=replace(report, workload=workload))
    assert result.return_value == 1
    assert rows(result)["budget"][-2] == "2 violations"
    assert rows(result)["slots"][-2] == "clean"
    assert " 2 violations, 0 blocks missing at the end" in result.stdout
