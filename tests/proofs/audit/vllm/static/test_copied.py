"""Loops copied from a release of vLLM (cases B34, B36)."""

import pytest

from onbeat_proofs.audit.vllm.static.compare import misfits_of_vllm
from tests.proofs.audit.vllm.fake import FILES, Fake, misfits, only


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
