"""The static audit of classes of vLLM's family, beside a package of vLLM's shape; what overrides take."""

import sys
from pathlib import Path

import pytest

from onbeat_proofs.audit.vllm.static.compare import installed_base, misfits_of_vllm
from onbeat_spec.errors import NotAScheduler
from tests.proofs.audit.vllm.fake import FILES, SCHEDULE, Fake, misfits, only

FITS = """
def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.extra = 0

def schedule(self, throttle_prefills=False):
    self.extra += 1
    return super().schedule(throttle_prefills)

def _ready(self, request):
    return request.num_tokens > 0 and super()._ready(request)

def _free_request(self, request, delay=False):
    first, second = super()._free_request(request, delay)
    return first, second
"""


def test_a_class_that_fits(fake: Fake) -> None:
    assert misfits(fake.scheduler(FITS)) == []


@pytest.mark.parametrize("name", ["Scheduler", "AsyncScheduler"])
def test_stock_classes_fit(fake: Fake, name: str) -> None:
    assert misfits(fake.plugin("", name)) == []


def test_the_base_is_the_nearest_of_vllm(fake: Fake) -> None:
    cls = fake.scheduler(FITS)
    assert installed_base(cls).__name__ == "AsyncScheduler"
    assert installed_base(fake.plugin("class Mine: pass")).__name__ == "SchedulerInterface"


def test_without_vllm_there_is_no_base(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)  # another test may have imported the real one
    with pytest.raises(NotAScheduler, match="derive from it, or import vllm first"):
        installed_base(Path)


@pytest.mark.parametrize("base", ["Scheduler", "AsyncScheduler"])
def test_b25_b26_no_flag(fake: Fake, base: str) -> None:
    cls = fake.scheduler("def schedule(self):\n    return super().schedule()", base)
    misfit = next(misfit for misfit in misfits_of_vllm(cls) if misfit.fatal)
    assert misfit.where == "Mine.schedule"
    assert misfit.message.startswith("missing throttle flag: ")


def test_b26_only_the_async_class_is_at_fault(fake: Fake) -> None:
    text = """
class Sync(Scheduler):
    pass


class Mine(AsyncScheduler):
    def schedule(self):
        return {}
"""
    assert any("missing throttle flag" in line for line in misfits(fake.plugin(text)))
    assert not any("missing throttle flag" in line for line in misfits(fake.plugin(text, "Sync")))


@pytest.mark.parametrize(
    "method",
    [
        "def schedule(self, *args, **kwargs):\n    return super().schedule(*args, **kwargs)",
        "def schedule(self, *args):\n    return super(Mine, self).schedule(*args)",
        f"{SCHEDULE}return AsyncScheduler.schedule(self, throttle_prefills)",
        f"{SCHEDULE}flag = bool(throttle_prefills)\n    return super().schedule(flag)",
        f"{SCHEDULE}return self._own(throttle_prefills)\n\ndef _own(self, flag):\n    return flag",
    ],
)
def test_b26_forwarding(fake: Fake, method: str) -> None:
    assert [misfit for misfit in misfits_of_vllm(fake.scheduler(method)) if not misfit.warning] == []


def test_a_mixin_that_forwards(fake: Fake) -> None:
    text = """
class Recording:
    def schedule(self, *args, **kwargs):
        return super().schedule(*args, **kwargs)


class Mine(Recording, AsyncScheduler):
    pass
"""
    assert misfits(fake.plugin(text)) == []


def test_b30_a_stale_parameter_list(fake: Fake) -> None:
    misfit = only(fake.scheduler("def _split(self, request):\n    return 1"))
    assert misfit.where == "Mine._split"
    assert "take _split(self, request, tokens)" in misfit.message


def test_b30_a_stale_call(fake: Fake) -> None:
    """The other half: a helper that lost a parameter, called where some feature is on."""
    misfit = only(fake.scheduler("def hybrid(self, request):\n    return self._split(request, 1, 0)"))
    assert misfit.where == "Mine.hybrid"
    assert "calls self._split(request, 1, 0): too many positional arguments" in misfit.message


def test_b31_a_hook_without_a_keyword(fake: Fake) -> None:
    misfit = only(fake.scheduler("def _update_request_with_output(self, request, tokens):\n    return tokens, False"))
    assert misfit.message == (
        "does not take is_stale=, with which Scheduler.update_from_output of the installed vLLM calls it"
    )


def test_other_names_are_a_warning(fake: Fake) -> None:
    misfit = only(fake.scheduler("def _split(self, req, count):\n    return count"))
    assert misfit.warning
    assert (
        misfit.message
        == "a call by name fails: its parameters have other names than those of _split(self, request, tokens)"
    )


def test_a_constructor_that_the_engine_cannot_call(fake: Fake) -> None:
    misfit = only(fake.scheduler("def __init__(self, vllm_config, kv_cache_config, block_size):\n    self.extra = 0"))
    assert misfit.fatal
    assert "unexpected keyword argument 'structured_output_manager'" in misfit.message


def test_a_class_with_only_the_interface(fake: Fake) -> None:
    misfit = only(fake.scheduler(f"{SCHEDULE}return [throttle_prefills]", "SchedulerInterface"))
    assert misfit.fatal
    assert misfit.message == (
        "is abstract: the installed vLLM also wants __init__, add_request, get_num_unfinished_requests"
    )


def test_b32_a_sync_class(fake: Fake) -> None:
    misfit = only(fake.scheduler("pass", "Scheduler"))
    assert misfit.warning
    assert misfit.message.startswith(
        "class is sync, engine expects async: async scheduling of the installed vLLM 0.33.0 is on unless "
    )


@pytest.mark.parametrize(("default", "warned"), [("None", True), ("True", True), ("False", False)])
def test_b32_goes_by_the_installed_default(fake: Fake, default: str, warned: bool) -> None:
    config = FILES["config/scheduler.py"].replace("None = None", f"None = {default}")
    (fake.folder / "vllm/config/scheduler.py").write_text(config, encoding="utf-8")
    assert bool(misfits(fake.scheduler("pass", "Scheduler"))) is warned
