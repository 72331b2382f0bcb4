"""Whether an override of schedule() hands its throttle flag on."""

import pytest

from tests.proofs.audit.vllm.fake import SCHEDULE, Fake, misfits, only


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
