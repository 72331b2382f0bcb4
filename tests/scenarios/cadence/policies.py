"""Policies that a scenario needs to show what a rule is there for."""

from onbeat_spec.policy import Policy


class Unguarded(Policy):
    """The cadence without its escape: no backlog ever opens a step (B23)."""

    name = "unguarded"

    def saturated(self, backlog: bool, waiting: bool) -> bool:
        """Never."""
        return False
