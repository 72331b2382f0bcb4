"""What the ranks of a group exchange between forwards."""

from typing import Protocol

from onbeat_engine.parallel.heart import NEVER
from onbeat_spec.protocol import Agreement, Vote, tally


class Exchange(Protocol):
    """The exchange of a group of `size` ranks, as one of them sees it."""

    @property
    def size(self) -> int:
        """Ranks that take part; 1: this one is on its own, and its forwards are too."""
        ...

    @property
    def vouched(self) -> float:
        """When a rank that keeps this one waiting was last seen to work (`time.monotonic`); asked by other threads."""
        ...

    def exchange(self, vote: Vote) -> Agreement:
        """Bring a vote; return what all together say, once every rank has brought one.

        Raises:
            OnbeatError: another rank is gone, or took too long.
        """
        ...

    def close(self) -> None:
        """Take part no more."""
        ...


class Alone:
    """A group of one agrees with itself."""

    size = 1
    vouched = NEVER

    def exchange(self, vote: Vote) -> Agreement:
        """Return what the vote says."""
        return tally([vote])

    def close(self) -> None:
        """There is nobody to leave."""
