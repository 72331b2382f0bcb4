"""A policy that looks harmless and is not: `onbeat prove examples/eager.py:Eager` says why."""

from onbeat_spec.policy import Policy


class Eager(Policy):
    """Lets short prompts in on every step, since they cost little."""

    name = "eager"

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        """Held only if long."""
        return work > 64
