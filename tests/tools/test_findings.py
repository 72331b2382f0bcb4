"""What is audited, what is kept of it, and what the page says of what is kept."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from onbeat_proofs.play.keeps_text import RULES
from onbeat_spec.catalogue import CATALOGUE
from tests.tools.test_vllm_env import PYPROJECT, Pip
from tools.findings import LIMIT, main
from tools.findings_notes import NOT_SHOWN, NOTES, SEEN, note_for
from tools.findings_targets import STOCK, TARGETS, THIRD
from tools.vllm_env import ALL, DISTRIBUTIONS, Done

SCENARIO = """\
name: one
invariants: [resume-bypasses]
steps:
  - add: {id: a, prompt: 3, max_tokens: 1}
  - schedule: {throttle: true}
"""
HELD = "a, a remote resume with 1 loaded tokens, was held"


def found(invariant: str, message: str, **changes: Any) -> dict[str, Any]:
    finding = {
        "invariant": invariant,
        "message": message,
        "also": [],
        "scenario": SCENARIO,
        "table": "step 0",
        "step": 0,
        "check": "search",
    }
    return {**finding, **changes}


def report(*findings: dict[str, Any], **verdicts: str) -> dict[str, Any]:
    violated = {finding["invariant"] for finding in findings}
    rows = [
        {
            "invariant": id,
            "verdict": verdicts.get(id.replace("-", "_"), "violated" if id in violated else "holds"),
            "statement": f"about {id}",
        }
        for id in (*RULES, *CATALOGUE)
    ]
    return {"environment": {"python": "3.11.7"}, "signature": [], "invariants": rows, "findings": list(findings)}


class Audits:
    """Stands in for audits: writes the report that it was told for a label."""

    def __init__(self) -> None:
        self.reports: dict[str, dict[str, Any]] = {}
        self.run: list[str] = []
        self.environments: list[dict[str, str]] = []

    def __call__(self, command: Sequence[str], environment: dict[str, str], limit: float) -> Done:
        file = Path(command[command.index("--json") + 1])
        label = file.name.removesuffix(".report.json")
        assert limit == LIMIT[command[command.index("--budget") + 1]]
        self.run.append(label)
        self.environments.append(environment)
        if label not in self.reports:
            return Done(2, "a warning\nonbeat: error: it cannot be imported\n\n")
        file.write_text(json.dumps(self.reports[label]), encoding="utf-8")
        return Done(1, "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    (tmp_path / "constraints.txt").touch()
    (tmp_path / "requirements-vllm.txt").touch()
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.fixture
def audits() -> Audits:
    return Audits()


def page(root: Path, audits: Audits, *labels: str) -> str:
    assert main([option for label in labels for option in ("--only", label)], root, Pip(), audits) == 0
    return (root / "docs" / "findings.md").read_text("utf-8")


def test_a_finding_is_shown_with_its_files(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report(found("resume-bypasses", HELD))
    text = page(root, audits, "vllm-0.33.0-sync")
    assert "### partial-resume-held" in text
    assert "A deliberate difference" in text
    named = SCENARIO.replace("name: one", "name: 'partial-resume-held: vllm.v1.core.sched.scheduler:Scheduler'")
    assert named in text
    assert (root / "docs/findings/partial-resume-held.yaml").read_text("utf-8") == named
    assert (root / "docs/findings/test_partial_resume_held.py").read_text("utf-8").endswith(f"{HELD!r}\n")
    for name in re.findall(r"\]\((findings/[^)]+)\)", text):
        assert (root / "docs" / name).is_file()


def test_both_classes_of_a_release_share_a_cell(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report(found("resume-bypasses", HELD))
    audits.reports["vllm-0.33.0-async"] = report()
    audits.reports["vllm-0.32.0-sync"] = report(resume_bypasses="vacuous")
    text = page(root, audits, *audits.reports)
    row = next(line for line in text.splitlines() if line.startswith("| [partial-resume-held]"))
    assert row.split(" | ")[3:] == ["vacuous", "**violated** / holds |"]


def test_another_way_is_not_seen(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report(found("resume-bypasses", HELD))
    behind = "remote resume a with one token of local work got nothing; it stood behind remote resume a, which was held"
    audits.reports["vllm-0.32.0-sync"] = report(found("resume-bypasses", behind))
    text = page(root, audits, *audits.reports)
    row = next(line for line in text.splitlines() if line.startswith("| [partial-resume-held]"))
    assert row.split(" | ")[3:] == ["not seen", "**violated** |"]


def test_what_nobody_judged_is_shown_in_the_words_of_the_audit(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report(found("budget", "a got 9 tokens too many"))
    text = page(root, audits, "vllm-0.33.0-sync")
    assert "Not judged yet" in text
    assert "A got 9 tokens too many." in text


def test_what_was_known_and_is_not_found_is_told(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report()
    text = page(root, audits, "vllm-0.33.0-sync")
    assert text.count("| not shown |") == len(SEEN)


def test_results_are_kept(root: Path, audits: Audits) -> None:
    audits.reports["vllm-0.33.0-sync"] = report()
    first = page(root, audits, "vllm-0.33.0-sync")
    assert page(root, audits, "vllm-0.33.0-sync") == first
    assert audits.run == ["vllm-0.33.0-sync"]
    assert main(["--only", "vllm-0.33.0-sync", "--again"], root, Pip(), audits) == 0
    assert len(audits.run) == 2


def test_a_package_lies_beside_its_vllm(root: Path, audits: Audits) -> None:
    audits.reports["sendnn-0.28.0"] = report(found("no-crash", "it raised"), order_kept="inherited")
    pip = Pip()
    assert main(["--only", "sendnn-0.28.0"], root, pip, audits) == 0
    here = root / ".vllm/third/sendnn-0.28.0"
    assert f"--no-deps --target {here} sendnn-inference==2.6.3" in pip.installs()
    assert "SpyreModelRunnerOutput" in (here / "sendnn_inference/v1/worker/spyre_model_runner.py").read_text("utf-8")
    assert audits.environments[0]["PYTHONPATH"] == str(here)
    text = (root / "docs/findings.md").read_text("utf-8")
    assert "| `no-crash` | 1 invariant |" in text
    assert "Inherited: `order-kept`." in text


def test_what_cannot_be_driven_says_why(root: Path, audits: Audits) -> None:
    text = page(root, audits, "agentinfer-0.33.0")
    assert "It cannot be driven here: `onbeat: error: it cannot be imported`" in text


def test_a_fault_of_ours_is_not_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(*_: object) -> Done:
        return Done(2, "Traceback\nonbeat: error: this is an error of onbeat itself; please report it\n")

    assert main(["--only", "agentinfer-0.33.0"], root, Pip(), breaks) == 2
    assert "error: the audit itself broke: Traceback" in capsys.readouterr().err
    assert "agentinfer" not in (root / "docs/findings.md").read_text("utf-8")


def test_what_was_stopped_is_not_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stops(*_: object) -> Done:
        return Done(1, "VIOLATED  no-crash: the process was ended by SIGTERM during the last of these operations\n")

    assert main(["--only", "agentinfer-0.33.0"], root, Pip(), stops) == 2
    assert "was stopped from outside; run it again" in capsys.readouterr().err


def test_what_cannot_be_installed_is_told(root: Path, audits: Audits, capsys: pytest.CaptureFixture[str]) -> None:
    pip = Pip()
    pip.fails = lambda command: "--target" in command
    assert main(["--only", "agentinfer-0.33.0"], root, pip, audits) == 2
    assert "error: agentinfer-zmj-test==0.1.1 cannot be installed: ERROR: No matching" in capsys.readouterr().err
    assert audits.run == []


def test_a_label_that_is_none(root: Path, audits: Audits) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nobody"], root, Pip(), audits)


def test_targets() -> None:
    assert len({target.label for target in TARGETS}) == len(TARGETS)
    assert {target.vllm for target in STOCK} == set(ALL)
    assert {target.vllm for target in THIRD} <= DISTRIBUTIONS.keys()


def test_notes() -> None:
    assert len({note.id for note in NOTES}) == len(NOTES)
    assert {id for note in NOTES for id, _ in note.ways} <= {*RULES, *CATALOGUE}
    assert {note.seen for note in NOTES if note.seen} == set(SEEN)
    assert NOT_SHOWN.keys() <= SEEN.keys()


def test_a_note_is_for_some_releases() -> None:
    stuck = ("progress", "# steps in a row did nothing though work is there")
    note = note_for(*stuck, (0, 24))
    assert note is not None
    assert note.id == "priority-deadlock"
    assert note_for(*stuck, (0, 33)) is None


def test_what_the_page_links_to_is_there() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "findings.md").read_text("utf-8")
    files = set(re.findall(r"\]\(findings/([^)]+)\)", text))
    assert files == {path.name for path in (docs / "findings").iterdir() if path.is_file()}
    headings = {
        re.sub(r"[^\w -]", "", line[4:]).lower().replace(" ", "-") for line in text.splitlines() if line[:4] == "### "
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
