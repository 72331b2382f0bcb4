"""What overrides return beside what the installed base returns (case B29)."""

import pytest

from tests.proofs.audit.vllm.fake import Fake, misfits, only


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
