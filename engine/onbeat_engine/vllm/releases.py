"""Which vLLM releases the schedulers fit."""

import logging
import re
from functools import cache
from importlib import import_module

from onbeat_spec.errors import OnbeatError

LOGGER = logging.getLogger("vllm.onbeat")
"""Below vLLM's own logger, so that its handlers and its level apply."""

TESTED = ("0.31.0", "0.32.0", "0.33.0")
"""Releases that the tests have been run against."""


class UnsupportedVllm(OnbeatError):
    """There is no vLLM, or one that the schedulers do not fit."""


def release(version: str) -> tuple[int, int] | None:
    """Return the release series of a version, or None for one that names none (a development build)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def check(version: str) -> str | None:
    """Return a warning if a version is newer than the tests, None if it has been tested.

    Raises:
        UnsupportedVllm: it is too old.
    """
    found = release(version)
    series = [release(each) for each in TESTED]
    if found in series:
        return None
    if found is not None and found < (series[0] or found):
        raise UnsupportedVllm(
            f"vLLM {version} is installed; Onbeat's schedulers need {TESTED[0]} or newer "
            f"(tested: {', '.join(TESTED)}). Upgrade vLLM, or serve without --scheduler-cls"
        )
    return f"vLLM {version} is newer than the releases that Onbeat's schedulers were tested with ({', '.join(TESTED)})"


@cache
def require() -> None:
    """See to it that a vLLM is installed that the schedulers fit; log a warning if it is newer than the tests.

    Raises:
        UnsupportedVllm: it is missing or too old.
    """
    try:
        version = str(getattr(import_module("vllm"), "__version__", "unknown"))
    except ImportError as error:
        raise UnsupportedVllm(
            f"vLLM cannot be imported ({error}); Onbeat's schedulers for it need one of {', '.join(TESTED)}"
        ) from error
    warning = check(version)
    if warning is not None:
        LOGGER.warning(warning)


def require_hooks(stock: type, names: tuple[str, ...]) -> None:
    """See to it that a stock class has the methods that ours override.

    Raises:
        UnsupportedVllm: one is missing; a newer vLLM has renamed it.
    """
    missing = [name for name in names if not callable(getattr(stock, name, None))]
    if missing:
        raise UnsupportedVllm(
            f"{stock.__module__}.{stock.__qualname__} has no {', '.join(missing)}, which Onbeat's schedulers build on; "
            f"use vLLM {TESTED[0]} to {TESTED[-1]}"
        )
