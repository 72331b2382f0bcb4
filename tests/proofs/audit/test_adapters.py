"""Families of schedulers: which adapter takes a class, and what is said of a class that none takes."""

import pytest

from onbeat_proofs.audit.adapters import ReferenceAdapter, adapter_for
from onbeat_proofs.audit.vllm import library
from onbeat_proofs.audit.vllm.adapter import VllmAdapter
from onbeat_proofs.foreign.targets import load_scheduler
from onbeat_reference import Scheduler
from onbeat_spec.errors import NotAScheduler


class SchedulerInterface:
    """What vLLM's base class looks like from outside."""


SchedulerInterface.__module__ = "vllm.v1.core.sched.interface"


class OfVllm(SchedulerInterface):
    """A scheduler of the family."""


def test_the_reference_is_a_family_of_its_own() -> None:
    assert isinstance(adapter_for(Scheduler), ReferenceAdapter)


def test_vllms_family_is_known_by_its_base() -> None:
    assert isinstance(adapter_for(OfVllm), VllmAdapter)


def test_a_class_of_no_family_is_named_with_what_it_lacks() -> None:
    request = load_scheduler("onbeat_reference:Request")
    with pytest.raises(NotAScheduler, match="has no method add_request, abort, schedule, update"):
        adapter_for(request)


def test_without_vllm_its_family_cannot_be_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)

    library.full_version.cache_clear()
    with pytest.raises(NotAScheduler, match="run the audit in the environment of the vLLM that the class is for"):
        VllmAdapter().misfits(OfVllm)
