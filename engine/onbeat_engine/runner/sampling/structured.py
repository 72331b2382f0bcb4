"""Structured output as masks over the logits."""

from collections.abc import Sequence
from typing import Any

import torch

from onbeat_engine.runner.sampling.plan import SamplerState
from onbeat_engine.runner.sampling.transfer import to_device
from onbeat_engine.text.grammars import Grammars
from onbeat_spec.errors import ProtocolMisuse

_BITS = torch.arange(32, dtype=torch.int32)


def mask_logits(logits: Any, grammars: Grammars, rows: Sequence[tuple[int, SamplerState, int]]) -> None:
    """Set to minus infinity what the grammars rule out, in place. After its end a text has end tokens only.

    Args:
        logits: [S, V].
        grammars: those of the requests.
        rows: of the structured requests: row number, state, position of the token to be sampled.

    Raises:
        ProtocolMisuse: the tokens before it are not on the host: structured requests cannot run a step ahead.
    """
    bitmask = grammars.bitmask(len(rows))
    ended = []
    for index, (_, state, position) in enumerate(rows):
        request, matcher = state.request, state.matcher
        if len(request.tokens) < position:
            raise ProtocolMisuse(
                f"request {request.id} is structured: position {position} cannot be sampled before the "
                f"{len(request.tokens)} known tokens are {position}"
            )
        assert matcher is not None
        matcher.tell(request.tokens[request.num_prompt : position])
        if not matcher.allow(bitmask, index):
            ended.append(index)
    allowed = (bitmask[:, :, None] >> _BITS & 1).bool().flatten(1)[:, : grammars.vocab_size]
    # Where a grammar leads nowhere the text ends, too: of no token at all none can be chosen.
    for index in {*ended, *(~allowed.any(1)).nonzero().flatten().tolist()}:
        allowed[index] = False
        allowed[index, grammars.ends] = True
    numbers = to_device([row for row, _, _ in rows], torch.int64, logits.device)
    ruled_out = ~allowed.to(logits.device)
    logits[numbers] = logits[numbers].masked_fill_(ruled_out, -torch.inf)
