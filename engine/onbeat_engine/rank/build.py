"""A rank with a real model. What needs torch is imported when a rank is built, in the rank's own process."""

import os
from typing import TYPE_CHECKING

from onbeat_engine.parallel.exchange import Alone, Exchange
from onbeat_engine.rank.parts import Built
from onbeat_engine.text.grammars import Grammars
from onbeat_engine.text.open_tokenizer import configured_tokenizer
from onbeat_engine.wire.config import EngineConfig

if TYPE_CHECKING:
    from onbeat_engine.runner.companions import Companions


def build(config: EngineConfig, rank: int) -> Built:
    """Load the model, and put a runner around it.

    Ranks of a dense model share nothing, and each is on its own (case B80). Those of a mixture of experts share the
    experts, and meet first; this returns when all have.

    Raises:
        ModelError: the model cannot be used. ConfigError: there is no memory for its KV, no such device, or the ranks
            were started differently. EngineDead: another rank did not come.
    """
    import torch  # noqa: PLC0415 - see above

    from onbeat_engine.parallel.member import become_member, shares_experts  # noqa: PLC0415 - see above
    from onbeat_engine.runner.model_runner import ModelRunner, choose_device  # noqa: PLC0415 - see above
    from onbeat_engine.runner.models.load import load_model, open_model  # noqa: PLC0415 - see above
    from onbeat_engine.runner.sampling.sampler import Sampler  # noqa: PLC0415 - see above

    device = choose_device(config.device)
    if device.type == "cuda" and config.data_parallel_size > 1:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    companions: Companions | None = None
    exchange: Exchange = Alone()
    opened = open_model(config.model)
    if shares_experts(config, opened.config):
        model, companions, exchange = become_member(config, rank, device, opened)
    else:
        model = load_model(config, device=device, opened=opened)
    del opened  # what maps the file is not kept beside the model
    vocab_size = model.config.vocab_size
    grammars = Grammars(lambda: configured_tokenizer(config), vocab_size)
    sampler = Sampler(vocab_size, device, config.max_num_seqs, grammars=grammars)
    runner = ModelRunner(model, config, sampler, companions=companions)
    return Built(
        runner,
        runner.num_blocks,
        model.max_model_len,
        exchange,
        vocab_size,
        compile_grammar=grammars.check,
        on_cpu=device.type == "cpu",
    )
