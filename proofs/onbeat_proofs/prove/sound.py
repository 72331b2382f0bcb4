"""What is true of every request between two operations: assumed of each start state, proved in `theorems/states.py`.

One function says it, for the assumption and for the proof that every operation keeps it.
"""

from onbeat_reference.request import Request
from onbeat_spec.policy import local_work
from onbeat_spec.records import Place


def wrong_with(request: Request, size: int, drafts: int) -> str | None:
    """Say what cannot be so of a request between two operations.

    Args:
        request: it, between two operations.
        size: tokens of a block.
        drafts: most draft tokens of a step.
    """
    if request.num_prompt < 1 or request.num_tokens < request.num_prompt or request.num_tokens >= request.limit:
        return "its tokens lie outside prompt and limit"
    if request.num_computed < 0 or request.num_placeholders < 0 or request.num_drafts < 0 or request.reserved < 0:
        return "a count is negative"
    # What follows from how a start state is built comes first in each line: it is asked once, and splits no path.
    most = request.num_tokens + 1 + drafts
    if (request.num_blocks + request.reserved - 1) * size >= most and request.reserved > 0:
        return "it is promised more than its tokens and a decode step need"
    if request.num_blocks > 0:
        return _wrong_with_holder(request, size)
    if request.place is not Place.WAITING:
        return f"it is {request.place.value} and holds no block"
    if request.num_computed > 0 or request.external > 0 or request.reserved > 0:
        return "it holds no block, and counts speak of some"
    return _wrong_while_it_does_not_run(request)


def _wrong_with_holder(request: Request, size: int) -> str | None:
    if (request.num_blocks + request.reserved) * size < request.num_prompt:
        return "it has neither blocks nor a promise for its prompt"
    if request.remote_tokens > 0:
        return "the store was asked, and still offers"
    if request.num_computed > request.num_blocks * size:
        return "more is computed than its blocks hold"
    if request.place is Place.RUNNING:
        if local_work(request) < 1:
            return "nothing is left to compute for it"
        coming = request.num_tokens + request.num_placeholders + request.num_drafts
        if coming >= request.limit and (request.num_drafts > 0 or coming > request.limit):
            return "more is on its way than its limit allows"
        return None
    if (request.num_blocks + request.reserved) * size < request.num_tokens:
        return "it waits, and has neither blocks nor a promise for all it knows"
    if (request.num_blocks - 1) * size >= request.num_tokens:
        return "it waits with more blocks than its tokens need"
    if request.num_computed >= request.num_tokens:
        return "it waits with nothing left to compute"
    if request.place is Place.PARKED and (request.num_computed > 0 or request.external < 1):
        return "it loads, and counts do not say so"
    if request.place is Place.WAITING and request.num_computed != min(request.external, request.num_tokens - 1):
        return "it waits, and is not computed as far as it was loaded"
    if request.external > request.num_tokens or request.external > request.num_blocks * size:
        return "more is loaded than it knows or has room for"
    return _wrong_while_it_does_not_run(request)


def _wrong_while_it_does_not_run(request: Request) -> str | None:
    if request.num_placeholders > 0 or request.num_drafts > 0:
        return "it does not run, and something of it is on its way"
    return None
