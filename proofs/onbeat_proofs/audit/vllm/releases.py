"""The policy text of each released vLLM: what its own scheduler should do, good or bad."""

from typing import Any

from onbeat_proofs.audit.vllm import library
from onbeat_spec.policy import LocalWork, Policy, PullRequest44558


class FirstLocalWork(LocalWork):
    """From 0.25.0 to 0.31: held iff more than one token of local work is left; a pause leaves the flag alone."""

    name = "vllm-0.25"

    def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
        """Not while new requests are paused."""
        return Policy.writes_flag(self, hold=hold, preempted=preempted, open=open)


TEXTS: dict[tuple[int, int], type[Policy]] = {(0, 24): PullRequest44558, (0, 25): FirstLocalWork, (0, 32): LocalWork}
"""From which release on which text holds (PRs 44558 and 46532; the pause from 0.32.0)."""


def names_its_text(cls: Any) -> bool:
    """Whether a class says itself which policy it decides with."""
    own = getattr(cls, "onbeat_policy", None)
    return isinstance(own, type) and issubclass(own, Policy)


def text_of(cls: Any) -> type[Policy]:
    """Return the policy text that a class should keep: the one that it names (`onbeat_policy`), or its vLLM's."""
    if names_its_text(cls):
        own: type[Policy] = cls.onbeat_policy
        return own
    installed = library.version()
    return TEXTS[max(since for since in TEXTS if since <= installed)]
