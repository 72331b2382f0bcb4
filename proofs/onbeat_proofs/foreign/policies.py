"""Policies by name: one of the built-in ones, or anybody's class."""

import inspect
from copy import copy
from pathlib import Path
from types import FunctionType

from onbeat_proofs.foreign.targets import load_class, where_raised
from onbeat_spec.errors import PolicyError
from onbeat_spec.policy import POLICIES, Policy


def policy_of(text: str, base: Path | None = None) -> type[Policy]:
    """Return the policy class that `text` names.

    Args:
        text: the name of a built-in policy, `module:Class`, or `path/to/file.py:Class`.
        base: folder that a relative file name starts from (that of the scenario file); by default the current one.

    Raises:
        PolicyError: there is no such file, module or class; it cannot be imported; it is no subclass of `Policy`; it
            cannot be made without arguments; or a method cannot be called as `Policy`'s is.
    """
    if text in POLICIES:
        return POLICIES[text]
    if ":" not in text:
        raise PolicyError(f"policy is {text!r}; it must be one of {', '.join(POLICIES)}, module:Class or file.py:Class")
    policy = load_class(text, "policy", PolicyError, base)
    if not issubclass(policy, Policy):
        raise PolicyError(f"policy {text!r} is no subclass of onbeat_spec.policy.Policy; derive it from that class")
    make_policy(policy, text)
    return policy


def make_policy(policy: type[Policy], text: str) -> Policy:
    """Make a policy, and see that its decisions can be called as the schedulers call them.

    Args:
        policy: the class.
        text: its name, in messages.

    Raises:
        PolicyError: it cannot be made without arguments, or a decision cannot be called as that of `Policy` is.
    """
    try:
        instance = policy()
    except Exception as reason:
        raise PolicyError(f"policy {text!r} cannot be made without arguments: {where_raised(reason)}") from reason
    for name, decision in vars(Policy).items():
        if inspect.isfunction(decision):
            _require_call(getattr(instance, name), f"policy {text!r}: {name}", decision)
    return instance


def _require_call(own: object, label: str, decision: FunctionType) -> None:
    if not callable(own):
        raise PolicyError(f"{label} is a {type(own).__name__}; it must be a method")
    _, *parameters = inspect.signature(decision).parameters.values()
    by_name = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    in_place = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    try:
        inspect.signature(own).bind(*in_place, **dict.fromkeys(by_name))
    except TypeError as reason:
        call = ", ".join([*in_place, *(f"{name}=..." for name in by_name)])
        raise PolicyError(f"{label} is called with ({call}): {reason}; give its parameters these names") from None
    except ValueError:
        shown = getattr(own, "__qualname__", type(own).__name__)
        raise PolicyError(
            f"{label} is {shown}, whose parameters cannot be read (it is not written in Python); "
            "write a method that calls it"
        ) from None


def without_hold(policy: Policy) -> Policy:
    """Return a copy of a policy that never holds: the scheduler without the feature."""
    return answering(policy, False)


def answering(policy: Policy, may_hold: bool) -> Policy:
    """Return a copy of a policy that always answers the same when asked whether a step may hold."""
    other = copy(policy)
    vars(other)["may_hold"] = _always if may_hold else _never
    return other


def _always(**facts: object) -> bool:
    return True


def _never(**facts: object) -> bool:
    return False
