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


@pytest.mark.parametrize(
    "body",
    [
        "if self.version < 24:\n        return super().schedule()\n    return super().schedule(throttle_prefills)",
        "if self.version >= 24:\n        return super().schedule(throttle_prefills)\n    return super().schedule()",
        "if self.version < 24:\n        out = super().schedule()\n"
        "    else:\n        out = super().schedule(throttle_prefills)\n    return out",
    ],
)
def test_a_branch_for_another_release_is_not_pointed_at(fake: Fake, body: str) -> None:
    """Which branch the installed release takes, the text does not say; the runs do."""
    version = "version = 33\n\n"
    assert misfits(fake.scheduler(f"{version}{SCHEDULE}{body}")) == []
    other = body.replace("version", "speed")
    assert "is not forwarded" in only(fake.scheduler(f"speed = 33\n\n{SCHEDULE}{other}")).message
