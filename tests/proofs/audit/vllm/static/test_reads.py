"""Attributes, helpers and calls that the installed vLLM no longer has (cases B30, B31)."""

import pytest

from tests.proofs.audit.vllm.fake import Fake, misfits, only


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
