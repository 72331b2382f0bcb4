"""The verb, and the process that keeps it alive."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onbeat_proofs.delayer.audit import DelayerJob
from onbeat_proofs.delayer.job import audit_apart
from onbeat_proofs.verbs.delayer import command
from onbeat_spec.errors import NotADelayer, OnbeatError, Undecided

FILE = Path(__file__).parents[1] / "delayer" / "delayers.py"


def run(*args: str) -> Result:
    return CliRunner().invoke(command, list(args), standalone_mode=False)


def test_a_run_that_holds() -> None:
    result = run("onbeat", "--max-delay-passes", "2")
    assert result.exception is None
    assert result.return_value == 0
    assert "held-at-most      2      holds    exhaustive  at most 2 in a row" in result.output
    assert "12 verdicts: 12 hold" in result.output


def test_a_violation_is_printed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    result = run(f"{FILE}:Unbounded", "--ranks", "2", "--json", str(file))
    assert result.return_value == 1
    assert "VIOLATED  bounded-delay: from every reachable state" in result.output
    assert "    0*    p r1 b0 q1 -  idle (-)  None" in result.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["exit_code"] == 1
    assert found["settings"]["ranks"] == [2]
    (bounded,) = [r for r in found["results"] if r["check"] == "bounded-delay"]
    assert bounded["verdict"] == "violated"
    assert bounded["run"]["loop"] == 0
    assert bounded["run"]["passes"][0]["allow"] == [False, False]
    assert bounded["run"]["passes"][0]["rows"][0]["prefillable"] is True


def test_a_process_that_dies_is_a_finding_with_its_rows() -> None:
    result = run(f"{FILE}:Dies", "--ranks", "2")
    assert result.return_value == 1
    assert "dying" not in result.output
    assert "VIOLATED  no-crash" in result.output
    assert "the process was ended by SIGKILL in the last pass" in result.output
    assert result.output.count("?") == 2


def test_a_decision_that_hangs_is_a_finding() -> None:
    result = run(f"{FILE}:Hangs", "--ranks", "2")
    assert result.return_value == 1
    assert "no answer within 5 s" in result.output


def test_a_process_that_ends_before_any_pass() -> None:
    with pytest.raises(NotADelayer, match="ended with exit code 3 before any pass"):
        audit_apart(DelayerJob(f"{FILE}:DiesEarly", ranks=(2,)))


def test_an_error_of_ours_is_no_finding() -> None:
    job = DelayerJob("onbeat", ranks=("two",))  # type: ignore[arg-type]  # what the verb would never pass on
    with pytest.raises(Undecided, match="an error of onbeat itself, please report it: TypeError"):
        audit_apart(job)


def test_no_verdict_in_time() -> None:
    with pytest.raises(Undecided, match="no verdict within"):
        audit_apart(DelayerJob(f"{FILE}:Hangs", ranks=(2,)), seconds=0.01)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no/such/file.py"], "there is no file no/such/file.py"),
        (["onbeat", "--ranks", "9"], "ranks is 9; it must be from 1 to 4"),
        (["onbeat", "--max-delay-passes", "0"], "max_delay_passes is 0"),
        (["onbeat_no_such:Class"], "there is no module 'onbeat_no_such'"),
    ],
)
def test_bad_input_is_one_line(args: list[str], message: str) -> None:
    result = run(*args)
    assert isinstance(result.exception, OnbeatError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_the_page_shows_what_the_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says of delayers that are in this repository; SGLang's are not."""
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    page = (root / "docs" / "delayer.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```\n\$ onbeat delayer ((?:onbeat|examples/)\S*[^|\n]*)\n(.*?)\n```", page, re.DOTALL)
    assert len(blocks) == 2
    for args, text in blocks:
        assert _timeless(run(*args.split()).output.rstrip("\n")) == _timeless(text)
    assert (root / "examples" / "together.py").read_text(encoding="utf-8") in page


def _timeless(text: str) -> str:
    return re.sub(r"\([\d.]+ s\)$", "", text)


def test_ranks_must_be_numbers() -> None:
    result = run("onbeat", "--ranks", "two")
    assert result.exception is not None
    assert "give numbers of ranks" in str(result.exception)
