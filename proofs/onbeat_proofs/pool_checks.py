"""Checks of the block pool by itself: ids, reference counts, the prefix cache."""

from collections.abc import Callable

POOL_CHECKS: tuple[Callable[[], str | None], ...] = ()
