"""The fake vLLM, for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proofs.audit.vllm.fake import Fake, installed


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    with installed(tmp_path) as made:
        yield made
