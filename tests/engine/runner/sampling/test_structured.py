"""Structured output: what is sampled."""

import json
from typing import Any

import pytest
import torch

from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.text.grammars import Grammars
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import StructuredOutput
from onbeat_spec.errors import ProtocolMisuse
from tests.engine.runner.sampling.helpers import request
from tests.engine.text.tiny import tiny

V = 270  # the model's, larger than the tokenizer's 264
END = 257
OBJECT = StructuredOutput(json_object=True)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer"}},
    "required": ["name", "n"],
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    pytest.importorskip("xgrammar")
    return Grammars(tiny, V)


def generate(grammars: Grammars, structured: StructuredOutput, seed: int, **params: Any) -> str:
    """Sample from random logits until the end token comes; return the text."""
    sampling = Sampler(V, "cpu", 4, grammars=grammars)
    one = request(seed=seed, structured=structured, stop=[END], **params)
    other = request("other", temperature=0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(400):
        logits = torch.randn(2, V, generator=generator)
        logits[:, [ord("}"), ord('"'), END]] += 2.0
        position = [len(one.tokens), len(other.tokens)]
        tokens = sampling.collect(sampling.sample(logits, [one, other], position)).tokens
        one.tokens.append(tokens[0])
        other.tokens.append(tokens[1])
        assert tokens[1] == logits[1].argmax()
        if tokens[0] == END:
            return tiny().decode(one.tokens[one.num_prompt :])
    raise AssertionError(f"no end: {tiny().decode(one.tokens)!r}")


@pytest.mark.parametrize("seed", range(5))
def test_object(grammars: Grammars, seed: int) -> None:
    assert isinstance(json.loads(generate(grammars, OBJECT, seed, min_tokens=30), strict=False), dict)


@pytest.mark.parametrize("seed", range(5))
def test_schema(grammars: Grammars, seed: int) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = generate(grammars, StructuredOutput(json_schema=SCHEMA), seed, temperature=0.8, top_p=0.9)
    jsonschema.validate(json.loads(text, strict=False), SCHEMA)


def test_only_end_tokens_after_the_end(grammars: Grammars) -> None:
    """Also where end tokens end nothing (`ignore_eos`)."""
    sampling = Sampler(V, "cpu", 4, grammars=grammars)
    one = request(structured=OBJECT, temperature=0)
    one.tokens += [ord("{"), ord("}"), END]
    for _ in range(2):
        tokens = sampling.sample(torch.zeros(1, V), [one], [len(one.tokens)]).tokens
        assert tokens.tolist() == [END]
        one.tokens.append(END)


def test_after_a_preemption(grammars: Grammars) -> None:
    """A sampler that has not seen the request before, or has seen more of it, is brought to where the text is."""
    logits = torch.zeros(1, V)
    logits[0, ord("{")] = 1.0
    one = request(structured=OBJECT, temperature=0)
    sampling = Sampler(V, "cpu", 4, grammars=grammars)
    one.tokens.append(sampling.sample(logits, [one], [3]).tokens.item())
    assert one.tokens[3:] == [ord("{")]
    sampling.sample(logits, [one], [4])
    del one.tokens[3:]
    assert sampling.sample(logits, [one], [3]).tokens.item() == ord("{")


def test_not_a_step_ahead(grammars: Grammars) -> None:
    sampling = Sampler(V, "cpu", 4, grammars=grammars)
    with pytest.raises(ProtocolMisuse, match="position 4 cannot be sampled before the 3 known tokens are 4"):
        sampling.sample(torch.zeros(1, V), [request(structured=OBJECT)], [4])


def test_a_grammar_that_leads_nowhere(grammars: Grammars) -> None:
    """It is refused; should one be met all the same, the text ends, and no other row notices."""
    nowhere = StructuredOutput(json_schema={"anyOf": [{"$ref": "#"}]})
    with pytest.raises(BadRequest, match="no text keeps it"):
        grammars.check(nowhere)
    sampling = Sampler(V, "cpu", 4, grammars=grammars)
    one, other = request(structured=nowhere, temperature=1.0), request("other", temperature=0)
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(1))
    tokens = sampling.collect(sampling.sample(logits, [one, other], [len(one.tokens), len(other.tokens)])).tokens
    assert tokens == [END, logits[1].argmax()]
