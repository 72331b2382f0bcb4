"""What several of these tests use."""

import logging

import pytest

from onbeat_engine.vllm.releases import LOGGER


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What our logger says, whatever vLLM has made of the logger above it."""
    monkeypatch.setattr(LOGGER, "handlers", [caplog.handler])
    monkeypatch.setattr(LOGGER, "propagate", False)
    caplog.set_level(logging.WARNING, logger=LOGGER.name)
    return caplog
