"""What the documentation shows is there."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from onbeat_proofs import pytest_plugin
from onbeat_proofs.verbs.audit import command

ROOT = Path(__file__).parent.parent
CI = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
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


SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


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


PAGES = sorted(
    path
    for folder in (".", "docs", "spec", "reference", "proofs", "engine", "program", "benchmarks/results")
    for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FOLDERS = {"spec": "onbeat_spec", "reference": "onbeat_reference", "proofs": "onbeat_proofs", "engine": "onbeat_engine"}


def test_the_table_of_the_architecture_is_complete() -> None:
    """It has every room, and every module of the packages without rooms; and all that it has is there."""
    package, shown = ROOT, set[Path]()
    for cell in re.findall(r"^\| (\S.*?) \| ", ARCHITECTURE, re.MULTILINE):
        if heading := re.match(r"\*\*`(\w+/\w+)/`\*\*", cell):
            package = ROOT / heading[1]
        elif package != ROOT:
            for name in re.findall(r"`([^`]+)`", cell):
                found = {*package.glob(name.rstrip("/")), *ROOT.glob(name.rstrip("/"))}
                assert found, name
                shown |= found
    for folder, name in FOLDERS.items():
        package = ROOT / folder / name
        needed = {path.parent for path in package.glob("*/__init__.py")}
        if folder in ("spec", "reference"):
            needed |= set(package.glob("[!_]*.py"))
        assert not needed - shown


def test_every_file_that_the_architecture_names_is_there() -> None:
    """`spec/x.py` is short for `spec/onbeat_spec/x.py`, `front/x.py` for `engine/onbeat_engine/front/x.py`."""
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE))
    assert len(named) > 20
    for name in named:
        first, _, rest = name.partition("/")
        whole = f"{first}/{FOLDERS[first]}/{rest}" if first in FOLDERS else name
        roots = [ROOT, *(ROOT / folder / package for folder, package in FOLDERS.items())]
        assert any((root / whole).exists() for root in roots), name


CODE = ("program", *FOLDERS, "tests", "benchmarks", "tools")


def test_every_file_that_a_docstring_of_a_module_names_is_there() -> None:
    """`x.py` and `room/x.py` are somewhere in the repository."""
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    files = {path.as_posix() for path in paths}
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in paths
        for name in re.findall(r"`([\w/]+\.py)`", ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    }
    assert len(named) > 10
    assert not [(path, name) for path, name in sorted(named) if not any(f.endswith(f"/{name}") for f in files)]
