"""What the runner asks of the ranks that share its experts."""

from collections.abc import Callable
from typing import Protocol

from onbeat_engine.runner.models.moe import Experts


class Agreed(Protocol):
    """What all ranks of a group know of a forward."""

    @property
    def replays(self) -> bool:
        """All replay a graph; else none does."""
        ...

    @property
    def padded(self) -> int:
        """The most tokens that any rank brings."""
        ...


class Companions(Experts, Protocol):
    """The ranks of a group that shares its experts; called as `Experts`, it runs them wherever they are."""

    @property
    def size(self) -> int:
        """Ranks, this one included."""
        ...

    def begin(self, num_tokens: int, replays: bool) -> Agreed:
        """Agree with all ranks on the forward that begins.

        Args:
            num_tokens: this rank's; 0 for a forward without any.
            replays: this rank could replay a graph.
        """
        ...

    def count(self, forward: Callable[[], object]) -> int | None:
        """Run a forward; return how many rows of this rank reached an expert; None: nobody could count."""
        ...

    def alike(self, num_tokens: int) -> None:
        """Let a forward begin to which every rank brings as many tokens; nothing is exchanged."""
        ...
