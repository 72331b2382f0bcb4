"""The static audit of classes of vLLM's family, beside a package of vLLM's shape; with the public subclass cases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onbeat_proofs.signature import Misfit
from onbeat_proofs.vllm.static import installed_base, misfits_of_vllm
from onbeat_spec.errors import NotAScheduler
from tests.proofs.vllm.fake import FILES, Fake, installed


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    with installed(tmp_path) as made:
        yield made


def misfits(cls: type) -> list[str]:
    return [str(misfit) for misfit in misfits_of_vllm(cls)]


def only(cls: type) -> Misfit:
    (misfit,) = misfits_of_vllm(cls)
    return misfit


SCHEDULE = "def schedule(self, throttle_prefills=False):\n    "
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


# --- What fits -------------------------------------------------------------------------------------------------------


def test_a_class_that_fits(fake: Fake) -> None:
    assert misfits(fake.scheduler(FITS)) == []


@pytest.mark.parametrize("name", ["Scheduler", "AsyncScheduler"])
def test_stock_classes_fit(fake: Fake, name: str) -> None:
    assert misfits(fake.plugin("", name)) == []


def test_the_base_is_the_nearest_of_vllm(fake: Fake) -> None:
    cls = fake.scheduler(FITS)
    assert installed_base(cls).__name__ == "AsyncScheduler"
    assert installed_base(fake.plugin("class Mine: pass")).__name__ == "SchedulerInterface"


def test_without_vllm_there_is_no_base() -> None:
    with pytest.raises(NotAScheduler, match="derive from it, or import vllm first"):
        installed_base(Path)


# --- Overrides take every call (B25, B26, B30, B31) ------------------------------------------------------------------


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


# --- The flag is handed on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "told", "warning"),
    [
        (f"{SCHEDULE}return super().schedule()", "is not forwarded", False),
        (f"{SCHEDULE}return super().schedule(False)", "gives a constant", False),
        ("def schedule(self, *args, **kwargs):\n    return super().schedule()", "is not forwarded", False),
        (
            f"{SCHEDULE}return {{}}",
            "flag is swallowed: it takes throttle_prefills",
            False,
        ),
        (
            f"{SCHEDULE}del throttle_prefills\n    return {{}}",
            "flag is swallowed",
            False,
        ),
        (
            f"{SCHEDULE}return super().schedule(throttle_prefills and self.running)",
            "hands on throttle_prefills and",
            True,
        ),
        (
            f"{SCHEDULE}throttle_prefills = 1\n    return super().schedule(throttle_prefills)",
            "hands on",
            True,
        ),
        (
            "def schedule(self, throttle_prefills=False, *args):\n    return super().schedule(*args)",
            "hands on *args",
            True,
        ),
    ],
)
def test_a_flag_that_does_not_arrive(fake: Fake, method: str, told: str, warning: bool) -> None:
    misfit = only(fake.scheduler(method))
    assert told in misfit.message
    assert misfit.warning is warning
    assert not misfit.fatal


def test_a_flag_behind_locals_is_left_alone(fake: Fake) -> None:
    assert (
        misfits(fake.scheduler(f"{SCHEDULE}return self.helper(locals())\n\ndef helper(self, all):\n    return all"))
        == []
    )


# --- What is returned (B29) ------------------------------------------------------------------------------------------


def test_b29_a_helper_that_returns_nothing(fake: Fake) -> None:
    misfit = only(fake.scheduler("def _ready(self, request):\n    self.finished.add(request.request_id)"))
    assert misfit.message.startswith("returns nothing; Scheduler._ready of the installed vLLM returns a value (bool)")


def test_b29_nothing_is_used_as_a_boolean(fake: Fake) -> None:
    """The case itself: upstream's helper stopped returning its boolean, the copied loop still asks for it."""
    misfit = only(
        fake.scheduler(
            "def promote(self, request):\n    if not self._landed(request):\n        return None\n    return 1"
        )
    )
    assert misfit.where == "Mine.promote"
    assert "uses what self._landed() returns; the installed vLLM's returns nothing" in misfit.message


@pytest.mark.parametrize(
    "method",
    [
        "def _ready(self, request):\n    if self.running:\n        return True",
        "def _ready(self, request):\n    if self.running:\n        return\n    return True",
        "def _ready(self, request):\n    try:\n        return True\n    except KeyError:\n        pass",
    ],
)
def test_a_helper_that_may_end_without_a_value(fake: Fake, method: str) -> None:
    assert only(fake.scheduler(method)).message.startswith("may end without a value; Scheduler._ready ")


@pytest.mark.parametrize(
    "method",
    [
        "def _ready(self, request):\n    raise NotImplementedError",
        "def _ready(self, request):\n    with open('x'):\n        return True",
        "def _ready(self, request):\n    while True:\n        if self.running:\n            return True",
        "def _ready(self, request):\n    match request:\n        case _:\n            return True",
        "def _ready(self, request):\n    if self.running:\n        return True\n    else:\n        return False",
        "def _ready(self, request):\n    try:\n        pass\n    finally:\n        return True",
        "def _ready(self, request):\n    yield True",
        "def _connector_finished(self, request):\n    if self.running:\n        return {}",
        "def _landed(self, request):\n    return True",
        "def hop(self, request):\n    return self._landed(request)",
        "def hop(self, request):\n    self.running and self._landed(request)",
    ],
)
def test_what_cannot_be_told_is_left_alone(fake: Fake, method: str) -> None:
    assert misfits(fake.scheduler(method)) == []


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("def _free_request(self, request, delay=False):\n    return None", "returns nothing"),
        (
            "def _free_request(self, request, delay=False):\n    return 1, 2, 3",
            "returns 3 values; Scheduler._free_request",
        ),
        ("def _connector_finished(self, request):\n    return False, None", "returns a tuple of 2; Scheduler._conn"),
    ],
)
def test_another_shape_than_the_base(fake: Fake, method: str, told: str) -> None:
    assert told in "\n".join(misfits(fake.scheduler(method)))


def test_more_values_than_are_taken(fake: Fake) -> None:
    misfit = only(
        fake.scheduler("def look(self, request):\n    blocks, cached = self.pool.find(request)\n    return cached")
    )
    assert misfit.message == "takes 2 values from self.pool.find(); the installed vLLM's returns 3"


@pytest.mark.parametrize(
    ("promised", "fault"),
    [
        ("list[tuple[str, int]]", True),
        ("'dict[str, int]'", True),
        ("tuple[list[Request], int]", True),
        ("list[Request]", False),
        ("list", False),
        ("list[object]", False),
        ("Sequence[Request]", False),
        ("tuple[Request, ...]", False),
    ],
)
def test_another_result_is_promised(fake: Fake, promised: str, fault: bool) -> None:
    """An override, and a helper that calls the base's method: upstream once returned pairs here."""
    override = f"def finish_requests(self, request_ids, finished_status) -> {promised}:\n    return list(request_ids)"
    names = "from collections.abc import Callable, Sequence\n\n\n"
    helper = (
        f"{names}class Hooks:\n"
        f"    def finish(self, ids, native: Callable[[list], {promised}]):\n        return native(ids)\n"
        "\n\nclass Mine(AsyncScheduler):\n    def __init__(self, *args, **kwargs):\n"
        "        super().__init__(*args, **kwargs)\n        self.hooks = Hooks()\n\n"
        "    def finish_requests(self, request_ids, finished_status):\n"
        "        return self.hooks.finish(request_ids, super().finish_requests)\n"
    )
    body = override.replace("\n", "\n    ")
    overriding, handing = (
        misfits(fake.plugin(text)) for text in (f"{names}class Mine(AsyncScheduler):\n    {body}", helper)
    )
    assert bool(overriding) is bool(handing) is fault
    assert not fault or "list[Request]" in overriding[0]
    assert not fault or "hands super().finish_requests to self.hooks.finish(), which expects of it" in handing[0]


# --- Attributes and helpers that are gone (B31) ----------------------------------------------------------------------


def test_b31_attributes_that_are_gone(fake: Fake) -> None:
    found = misfits(fake.scheduler("def look(self, request):\n    return self.skipped_waiting, request.async_discard"))
    assert found == [
        "Mine.look: reads self.skipped_waiting, which neither the class nor the installed vLLM sets",
        "Mine.look: reads request.async_discard, which a request of the installed vLLM does not have",
    ]


@pytest.mark.parametrize(
    "method",
    [
        "def look(self):\n    return getattr(self, 'gone', None)",
        "def look(self):\n    if hasattr(self, 'gone'):\n        return self.gone\n    return 0",
        "def look(self):\n    try:\n        return self.gone\n    except AttributeError:\n        return 0",
        "def look(self):\n    self.gone = 1\n    return self.gone",
        "gone = 1\n\ndef look(self):\n    return self.gone",
        "gone: int\n\ndef look(self):\n    return self.gone",
        "__slots__ = ('gone',)\n\ndef look(self):\n    return self.gone",
        "@property\ndef gone(self):\n    return 1\n\ndef look(self):\n    return self.gone",
        "def look(self):\n    setattr(self, 'gone', 1)\n    return self.gone",
        "def __getattr__(self, name):\n    return 1\n\ndef look(self):\n    return self.gone",
        "def look(self, other):\n    other.gone = 1\n    return self.gone",
        "def look(self):\n    class Inner:\n        def of(self):\n            return self.gone\n    return Inner",
        "@staticmethod\ndef look(state):\n    return state.gone",
        "def look(self, request: dict):\n    return request.gone",
        "def look(self, output):\n    return [request.gone for request in output.scheduled_new_reqs]",
        "def look(self, request):\n    request.mark = 1\n    return request.mark",
    ],
)
def test_attributes_that_may_be_there(fake: Fake, method: str) -> None:
    assert misfits(fake.scheduler(method)) == []


def test_what_a_patch_may_set_is_a_warning(fake: Fake) -> None:
    package = fake.folder / "plugin_pack"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "patch.py").write_text("def patch(cls):\n    cls.switch = True\n", encoding="utf-8")
    (package / "mine.py").write_text(
        "from vllm.v1.core.sched.async_scheduler import AsyncScheduler\n\n\n"
        "class Mine(AsyncScheduler):\n    def look(self):\n        return self.switch\n",
        encoding="utf-8",
    )
    misfit = only(fake.plugin("from plugin_pack.mine import Mine"))
    assert misfit.warning
    assert "patch.py of the same package sets one of that name" in misfit.message


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("def look(self):\n    return super().gone()", "calls super().gone, which no base has"),
        ("def look(self):\n    return remove_all([], set(), 1)", "calls remove_all([], set(), 1): too many positional"),
        ("def look(self):\n    return Request()", "calls Request(): missing a required argument: 'request_id'"),
        ("def look(self):\n    return self.pool.find()", "calls self.pool.find(): missing a required argument"),
        ("def look(self):\n    return self._split(1, count=2)", "missing a required argument: 'tokens'"),
        ("def look(self):\n    return self._split(*[1], count=2)", "got an unexpected keyword argument 'count'"),
        ("def look(self):\n    return Scheduler._split(self, 1)", "missing a required argument: 'tokens'"),
    ],
)
def test_calls_that_the_installed_one_does_not_take(fake: Fake, method: str, told: str) -> None:
    assert told in only(fake.scheduler(method)).message


@pytest.mark.parametrize(
    "method",
    [
        "def look(self):\n    try:\n        return self._split(1)\n    except TypeError:\n        return 0",
        "def look(self, version):\n    return self._split(1) if version < (0, 30) else self._split(1, 2)",
        "def look(self, args, more):\n    return self._split(*args, **more)",
        "def look(self):\n    self._split = lambda x: x\n    return self._split(1)",
        "def look(self, remove_all):\n    return remove_all(1)",
    ],
)
def test_calls_that_know_of_versions(fake: Fake, method: str) -> None:
    assert misfits(fake.scheduler(method)) == []


OBSERVER = """
def observe(self):
    pool = self.pool
    native = pool.find

    def observed({parameters}):
        return native(request)

    pool.find = observed
"""


def test_a_replacement_that_is_stale(fake: Fake) -> None:
    misfit = only(fake.scheduler(OBSERVER.format(parameters="request")))
    assert misfit.where.endswith(".observe")
    assert "puts observed in the place of Pool.find: it is called with (request, most): too many" in misfit.message


@pytest.mark.parametrize("parameters", ["request, most=None", "request, /, *rest", "request, *rest, log=True", "*all"])
def test_a_replacement_that_takes_what_it_gets(fake: Fake, parameters: str) -> None:
    assert misfits(fake.scheduler(OBSERVER.format(parameters=parameters))) == []


@pytest.mark.parametrize("parameters", ["request, most, **more", "request, most=None, *, log"])
def test_a_replacement_that_wants_more(fake: Fake, parameters: str) -> None:
    assert "missing a required" in only(fake.scheduler(OBSERVER.format(parameters=parameters))).message


# --- The engine's mode (B32) -----------------------------------------------------------------------------------------


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


# --- Copied loops (B34, B36) -----------------------------------------------------------------------------------------


def _copy(*changes: tuple[str, str]) -> str:
    """The loop of the fake's scheduler, changed."""
    text = FILES["v1/core/sched/scheduler.py"]
    body = text[text.index("    def schedule(") : text.index("    def update_from_output(")]
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    return body


CADENCE = ("        if self.local_prefill_interval > 1:\n            defer_prefills = True\n", "")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([("budget = 64", "budget = 32")], "0.33.0"),
        ([CADENCE, ("num_computed_tokens < request.num_tokens - 1", "request.num_computed_tokens == 0")], "0.24.0"),
        ([CADENCE], "0.25.0 to 0.30.0"),
    ],
)
def test_a_copied_loop(fake: Fake, changes: list[tuple[str, str]], text: str) -> None:
    misfit = only(fake.plugin(f"\n\nclass Mine(AsyncScheduler):\n{_copy(*changes)}"))
    assert misfit.warning
    assert "copies the loop of Scheduler.schedule" in misfit.message
    assert f"its policy text is that of {text}" in misfit.message
    assert ("the installed one's is that of 0.33.0" in misfit.message) is (text != "0.33.0")


def test_a_loop_copied_from_before_the_flag(fake: Fake) -> None:
    older = _copy(
        CADENCE,
        (", throttle_prefills: bool = False", ""),
        ("        defer_prefills = throttle_prefills and not self.prefill_capacity_bound\n", ""),
        ("defer_prefills and num_computed_tokens < request.num_tokens - 1", "shared"),
        ("defer_prefills and ", ""),
        ("        if not defer_prefills:\n            self.prefill_capacity_bound = bool(self.waiting)\n", ""),
    )
    fatal, warning = misfits_of_vllm(fake.plugin(f"\n\nclass Mine(AsyncScheduler):\n{older}"))
    assert "missing throttle flag" in fatal.message
    assert "its policy text is that of before 0.24.0, without a throttle" in warning.message


def test_an_exact_copy_is_no_misfit(fake: Fake) -> None:
    assert misfits(fake.plugin(f"\n\nclass Mine(AsyncScheduler):\n{_copy()}")) == []


def test_another_loop_is_no_copy(fake: Fake) -> None:
    lines = "\n".join(f"    step_{n} = throttle_prefills + {n}" for n in range(40))
    assert misfits(fake.scheduler(f"def schedule(self, throttle_prefills=False):\n{lines}\n    return {{}}")) == []
