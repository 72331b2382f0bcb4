"""Whether SGLang's estimate of the largest prefill batch forgets a burst (case B08)."""

from itertools import product
from typing import Any

from onbeat_proofs import symbolic
from onbeat_proofs.delayer.results import HOLDS, VACUOUS, VIOLATED, DelayerResult
from onbeat_proofs.delayer.sglang_file import Loaded

CHECK = "estimate-fades"
CLASS = "RecentPrefillBatchSizeTracker"
SMALL = 3
"""Window, and sizes up to this, of which all sequences are tried."""


def judge(loaded: Loaded, ranks: int) -> list[DelayerResult]:
    """Return the verdicts on the tracker of a version, if it has one."""
    tracker = getattr(loaded.module, CLASS, None)
    if not isinstance(tracker, type):
        detail = f"the file has no {CLASS}: what the rows say is kept elsewhere"
        return [DelayerResult(CHECK, ranks, VACUOUS, "exhaustive", detail)]
    return [_small(tracker, ranks), _burst(tracker, ranks)]


def _small(tracker: Any, ranks: int) -> DelayerResult:
    sizes = range(1, SMALL + 1)
    for before in product(sizes, repeat=SMALL):
        for size in sizes:
            one = tracker(SMALL)
            for attempt in before:
                one.observe_attempt(attempt)
            now = [one.observe_attempt(size) for _ in range(SMALL)][-1]
            if now != size:
                detail = f"after {before} and {SMALL} times {size} the estimate is {now}"
                return DelayerResult(CHECK, ranks, VIOLATED, "exhaustive", detail)
    return DelayerResult(CHECK, ranks, HOLDS, "exhaustive", f"window {SMALL}, all sizes up to {SMALL}")


def _burst(tracker: Any, ranks: int) -> DelayerResult:
    window: int = tracker()._recent_attempt_sizes.maxlen

    def burst(context: symbolic.Context) -> bool:
        one, size = tracker(), context.int("later", 1)
        one.observe_attempt(context.int("burst", 1))
        estimates = [one.observe_attempt(size) for _ in range(window)]
        return bool(estimates[-1] == size)

    for path in symbolic.explore(burst):
        if not path.result:
            return DelayerResult(
                CHECK, ranks, VIOLATED, "for all values", f"not so after {window} attempts: {path.model()}"
            )
    return DelayerResult(CHECK, ranks, HOLDS, "for all values", f"{window} attempts of any size make it that size")
