"""What the documentation shows is there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from onbeat_proofs import pytest_plugin
from onbeat_proofs.cmd_audit import command

CI = (Path(__file__).parent.parent / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", CI, re.MULTILINE | re.DOTALL)
AUDITS = re.findall(r"onbeat audit (mine:\S+ (?:.*\\\n)*.*)", CI)


def test_every_option_shown_is_an_option_of_the_verb() -> None:
    known = {option for parameter in command.params for option in parameter.opts}
    shown = [part for text in AUDITS for part in shlex.split(text.replace("\\\n", " ")) if part.startswith("--")]
    assert len(AUDITS) >= 4
    assert set(shown) >= {"--json", "--junit", "--sarif", "--html"}
    assert set(shown) <= known


def test_the_workflows_are_yaml() -> None:
    github, gitlab = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
    assert [step.get("name") for step in github["jobs"]["audit"]["steps"]][-3:] == ["Audit", "Alerts", "Reports"]
    assert gitlab["audit"]["artifacts"]["reports"]["junit"] == "audit.xml"


@pytest.mark.parametrize("name", re.findall(r"^\| `(\w+)` \|", CI, re.MULTILINE))
def test_every_attribute_shown_is_one_of_the_contract(name: str) -> None:
    assert hasattr(pytest_plugin.SchedulerContract, name)


def test_every_option_shown_is_one_of_the_plugin() -> None:
    source = Path(pytest_plugin.__file__).read_text(encoding="utf-8")
    for option in set(re.findall(r"--onbeat-\w+", CI)):
        assert f'"{option}"' in source
