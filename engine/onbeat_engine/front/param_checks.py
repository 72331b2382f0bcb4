"""What the front end checks of sampling parameters, knowing the model."""

from collections.abc import Iterable

from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams


def check_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        BadRequest: with the field's name and the ids.
    """
    _check("stop_token_ids", params.stop_token_ids, vocab_size)
    _check("logit_bias", params.logit_bias, vocab_size)


def check_prompt_ids(prompt: Iterable[int], vocab_size: int) -> None:
    """Refuse a prompt, given as token ids, with ids that the model does not have, or with none at all (case B100).

    Raises:
        BadRequest: with the ids.
    """
    ids = list(prompt)
    if not ids:
        raise BadRequest("the prompt has no tokens; at least one is needed", "prompt")
    _check("prompt", ids, vocab_size)


def _check(name: str, ids: Iterable[int], vocab_size: int) -> None:
    wrong = sorted({id for id in ids if not 0 <= id < vocab_size})
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise BadRequest(
            f"{name} has token ids that the model does not have: {shown}; its ids are 0 to {vocab_size - 1}", name
        )
