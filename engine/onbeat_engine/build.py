"""A rank with a real model. What needs torch is imported when a rank is built, in the rank's own process."""

import os

from onbeat_engine.config import EngineConfig
from onbeat_engine.core import Built
from onbeat_engine.text.tokenizer import Tokenizer


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """Return the tokenizer that the configuration names, or the model's own.

    Raises:
        ModelError: there is none.
    """
    from onbeat_engine.models.source import find  # noqa: PLC0415 - see above

    return Tokenizer.load(find(config.tokenizer or config.model).path)


def build(config: EngineConfig, rank: int) -> Built:
    """Load the model, and put a runner around it.

    Raises:
        ModelError: the model cannot be used. ConfigError: there is no memory for its KV, or no such device.
    """
    import torch  # noqa: PLC0415 - see above

    from onbeat_engine.models.load import load_model  # noqa: PLC0415 - see above
    from onbeat_engine.runner import ModelRunner, choose_device  # noqa: PLC0415 - see above
    from onbeat_engine.sampling.sampler import Sampler  # noqa: PLC0415 - see above
    from onbeat_engine.sampling.structured import Grammars  # noqa: PLC0415 - see above

    device = choose_device(config.device)
    if device.type == "cpu" and config.data_parallel_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // config.data_parallel_size))
    model = load_model(config, device=device)
    vocab_size = model.config.vocab_size
    grammars = Grammars(lambda: load_tokenizer(config), vocab_size)
    runner = ModelRunner(model, config, Sampler(vocab_size, device, config.max_num_seqs, grammars=grammars))
    return Built(runner, runner.num_blocks, model.max_model_len)
