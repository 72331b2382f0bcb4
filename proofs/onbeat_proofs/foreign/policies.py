"""Policies by name: one of the built-in ones, or anybody's class."""

from copy import copy
from pathlib import Path

from onbeat_proofs.foreign.targets import load_class, where_raised
from onbeat_spec.errors import PolicyError
from onbeat_spec.policy import POLICIES, Policy


def policy_of(text: str, base: Path | None = None) -> type[Policy]:
    """Return the policy class that `text` names.

    Args:
        text: the name of a built-in policy, `module:Class`, or `path/to/file.py:Class`.
        base: folder that a relative file name starts from (that of the scenario file); by default the current one.

    Raises:
        PolicyError: there is no such file, module or class; it cannot be imported; it is no subclass of `Policy`; or
            it cannot be made without arguments.
    """
    if text in POLICIES:
        return POLICIES[text]
    if ":" not in text:
        raise PolicyError(f"policy is {text!r}; it must be one of {', '.join(POLICIES)}, module:Class or file.py:Class")
    found = load_class(text, "policy", PolicyError, base)
    if not issubclass(found, Policy):
        raise PolicyError(f"policy {text!r} is no subclass of onbeat_spec.policy.Policy; derive it from that class")
    try:
        found()
    except Exception as reason:
        raise PolicyError(f"policy {text!r} cannot be made without arguments: {where_raised(reason)}") from reason
    return found


def without_hold(policy: Policy) -> Policy:
    """Return a copy of a policy that never holds: the scheduler without the feature."""
    off = copy(policy)
    vars(off)["may_hold"] = _never
    return off


def _never(*args: object) -> bool:
    return False
