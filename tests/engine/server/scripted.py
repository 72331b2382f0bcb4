"""Ranks whose answers a client writes: the tokens that come are those of the prompt, again and again."""

from collections.abc import Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from onbeat_engine.rank.parts import Built
from onbeat_engine.runner.executor import StepOutputs
from onbeat_engine.testing.fake import Copied, FakeExecutor, logprobs_of
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.config import EngineConfig


class CopyExecutor(FakeExecutor):
    """Samples the prompt's first token, then its second, and so on."""

    def compute(self, copied: Copied, outputs: StepOutputs) -> None:
        row = copied.row
        request = row.request
        if row.samples:
            at = row.start + row.num_tokens - request.num_prompt
            token = request.tokens[at % request.num_prompt]
            outputs.tokens[request.id] = [token]
            if request.params.logprobs is not None:
                outputs.logprobs[request.id] = [logprobs_of(token)]


def build(config: EngineConfig, rank: int) -> Built:
    """Build a rank; `config.model` is the seconds that a step takes."""
    executor = CopyExecutor(config.block_size, delay=float(config.model or 0))
    return Built(executor, config.num_gpu_blocks_override or 256, config.max_model_len or 1024)


def tokenizer(pieces: Sequence[str]) -> Tokenizer:
    """Return a tokenizer whose ids write these pieces."""
    backend = Backend(models.WordLevel({piece: id for id, piece in enumerate(pieces)}, unk_token=pieces[0]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)
