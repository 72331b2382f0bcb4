"""The static audit beside a real vLLM: for the Python of an environment of `make vllm-env`, with pytest added to it."""

import importlib
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onbeat_proofs.audit.vllm.static.class_text import tree_of
from onbeat_proofs.audit.vllm.static.compare import misfits_of_vllm
from onbeat_proofs.audit.vllm.static.copied import policy_text

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here")
QUIET = {"VLLM_PLUGINS": "", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
TEXTS = {24: "0.24.0", 31: "0.31.0 or 0.32.0", 32: "0.31.0 or 0.32.0", 33: "0.33.0"}


@pytest.fixture(scope="module")
def vllm() -> Any:
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what importing vLLM warns of is not ours
        names = ("vllm", "vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.async_scheduler")
        package, scheduler, asynchronous = map(importlib.import_module, names)
    return SimpleNamespace(
        version=package.__version__, Scheduler=scheduler.Scheduler, AsyncScheduler=asynchronous.AsyncScheduler
    )


@pytest.fixture
def plugin(vllm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a class of a module with a text."""
    monkeypatch.syspath_prepend(tmp_path)
    imports = "from vllm.v1.core.sched.async_scheduler import AsyncScheduler\n"
    imports += "from vllm.v1.core.sched.scheduler import Scheduler\n\n\n"

    def made(text: str) -> type:
        name = f"real_plugin_{abs(hash(text))}"
        (tmp_path / f"{name}.py").write_text(imports + text, encoding="utf-8")
        found: type = importlib.import_module(name).Mine
        return found

    return made


@pytest.mark.parametrize("name", ["Scheduler", "AsyncScheduler"])
def test_stock_classes_fit(vllm: Any, name: str) -> None:
    assert misfits_of_vllm(getattr(vllm, name)) == []


def test_the_policy_text_of_the_installed_loop(vllm: Any) -> None:
    tree = tree_of(vllm.Scheduler.schedule)
    assert tree is not None
    assert policy_text(tree) == TEXTS.get(int(vllm.version.split(".")[1]), "0.25.0 to 0.30.0")


def test_a_class_that_forwards_fits(plugin: Any) -> None:
    cls = plugin(
        "class Mine(AsyncScheduler):\n"
        "    def schedule(self, *args, **kwargs):\n"
        "        return super().schedule(*args, **kwargs)\n"
    )
    assert misfits_of_vllm(cls) == []


def test_a_sync_class_without_the_flag(vllm: Any, plugin: Any) -> None:
    cls = plugin("class Mine(Scheduler):\n    def schedule(self):\n        return super().schedule()\n")
    flag, mode = misfits_of_vllm(cls)
    assert flag.fatal
    assert flag.message.startswith("missing throttle flag: ")
    assert mode.warning
    assert f"installed vLLM {vllm.version} is on unless" in mode.message


def test_what_is_gone_is_told(plugin: Any) -> None:
    cls = plugin(
        "class Mine(AsyncScheduler):\n"
        "    def look(self, request):\n"
        "        return self.queue_of_old, request.field_of_old, super().hook_of_old(request)\n"
    )
    told = "\n".join(map(str, misfits_of_vllm(cls)))
    assert "reads self.queue_of_old" in told
    assert "reads request.field_of_old" in told
    assert "super().hook_of_old, which no base has" in told


def test_a_copied_loop(vllm: Any, plugin: Any) -> None:
    """The installed loop itself, in a class of its own, with one statement more."""
    source = Path(importlib.import_module(vllm.Scheduler.__module__).__file__ or "").read_text("utf-8")
    tree = tree_of(vllm.Scheduler.schedule)
    assert tree is not None
    first = vllm.Scheduler.schedule.__code__.co_firstlineno - 1
    lines = source.splitlines()[first : first + (tree.end_lineno or 0)]
    lines[-1] = f"        self.extra = 0\n{lines[-1]}"
    names = "import vllm.v1.core.sched.scheduler as upstream\n"
    names += "globals().update({k: v for k, v in vars(upstream).items() if not k.startswith('__')})\n\n\n"
    (misfit,) = misfits_of_vllm(plugin(names + "class Mine(AsyncScheduler):\n" + "\n".join(lines)))
    assert misfit.warning
    assert "copies the loop of Scheduler.schedule (100% alike): 1 of its" in misfit.message
