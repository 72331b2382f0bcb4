"""Log probabilities as JSON."""

import json
import math

import pytest

from onbeat_engine.front.outputs import Logprob
from onbeat_engine.server.routes.logprobs import LOWEST, value


@pytest.mark.parametrize(("logprob", "told"), [(-0.5, -0.5), (-math.inf, LOWEST), (math.nan, LOWEST)])
def test_json_holds_every_value(logprob: float, told: float) -> None:
    """A model whose activations overflow tells of no numbers."""
    found = value(Logprob(logprob, 1, "a"))
    assert json.loads(json.dumps(found, allow_nan=False)) == told
