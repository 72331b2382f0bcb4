"""What the documentation shows is there."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from onbeat_proofs import pytest_plugin
from onbeat_proofs.verbs.audit import command

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


SERVING = (Path(__file__).parent.parent / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_page_on_serving_has_every_flag_and_no_other() -> None:
    pytest.importorskip("fastapi", reason="the engine's libraries are not installed")
    from onbeat_engine.verbs.serve import command as serve

    known = {option for parameter in serve.params for option in (*parameter.opts, *parameter.secondary_opts)}
    shown = set(re.findall(r"`(--[a-z-]+)`", SERVING))
    assert shown <= known
    # Of a switch one side is enough.
    assert not [p.opts for p in serve.params if p.opts[0].startswith("-") and not shown & {*p.opts, *p.secondary_opts}]


def test_the_page_on_serving_has_every_endpoint_and_every_metric() -> None:
    pytest.importorskip("fastapi", reason="the engine's libraries are not installed")
    from prometheus_client import generate_latest

    from onbeat_engine.server.app import build
    from onbeat_engine.server.options import ServerConfig
    from tests.engine.server.stub import StubEngine

    app, serving = build(StubEngine(), ServerConfig())
    shown = re.findall(r"`(/[\w./{}]+)", SERVING)
    assert {path.replace("{name:path}", "{name}") for path in app.openapi()["paths"]} <= set(shown)
    kinds = re.findall(r"^# TYPE onbeat:(\w+) (\w+)$", generate_latest(serving.metrics.registry).decode(), re.MULTILINE)
    names = {name + "_total" * (kind == "counter" and not name.endswith("_total")) for name, kind in kinds}
    assert len(names) > 15
    missing = {name for name in names if not name.endswith("_created")} - set(re.findall(r"`(\w+)`", SERVING))
    assert not missing
