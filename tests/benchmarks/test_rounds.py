"""The rounds of kills and hangs, a few of them."""

import pytest

from benchmarks import rounds


def test_a_few_rounds(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "HANG_EVERY", 2)
    rounds.main(["--rounds", "2"])
    assert "left behind: 0 processes, 0 file descriptors" in capfd.readouterr().out
