"""Families of schedulers: how a class is made drivable, and what can be asked of it.

The reference's own family is one of them. Others are found by entry points of the group `onbeat.adapters`, each naming
an object with the methods of `Adapter`; the first that knows a class takes it.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Protocol

from onbeat_proofs.audit.results import Finding
from onbeat_proofs.audit.static.signature import Misfit, misfits_of, probe
from onbeat_proofs.foreign.families import Factory, lacks_methods
from onbeat_proofs.scenarios.operations import Scenario
from onbeat_reference.schedulable import Steppable
from onbeat_reference.scheduler import Scheduler
from onbeat_spec.config import Config
from onbeat_spec.errors import NotAScheduler
from onbeat_spec.policy import Policy

GROUP = "onbeat.adapters"
AUTO = "auto"
"""The policy that a class should have, by its family and version."""


class Adapter(Protocol):
    """One family of schedulers."""

    @property
    def decides_itself(self) -> bool:
        """Whether its classes have their policy built in, rather than being given one."""
        ...

    def knows(self, cls: type) -> bool:
        """Whether a class is of this family. Must not import what the family needs unless it is loaded already."""
        ...

    def factory(self, cls: type) -> Factory:
        """Return what makes a drivable scheduler from (config, policy)."""
        ...

    def policy(self, cls: type) -> Policy:
        """Return the policy text that the class should keep."""
        ...

    def environment(self) -> dict[str, str]:
        """Return names and versions of what the class runs with."""
        ...

    def misfits(self, cls: type) -> list[Misfit]:
        """Return what is wrong with the class before it runs."""
        ...

    def probe(self, factory: Factory, policy: Policy) -> Misfit | None:
        """Return what a first run says about the contract with the class's callers."""
        ...

    def config(self, cls: type, config: Config) -> Config:
        """Return a configuration without what the family does not have."""
        ...

    def prepare(self, cls: type, scenario: Scenario) -> Scenario | None:
        """Return a scenario as the class can run it; None: it speaks of what the family does not have."""
        ...

    def pytest_file(self, cls: type, finding: Finding) -> str | None:
        """Return a pytest file that shows a finding without us; None: there is none for this family, or finding."""
        ...

    def base(self, cls: type) -> type | None:
        """Return the class of the family's own that a class derives from; None: it is one."""
        ...

    def lacks(self) -> dict[str, str]:
        """Return the invariants about what the family does not have, and why."""
        ...


class ReferenceAdapter:
    """Classes with the interface of `onbeat_reference.Scheduler`."""

    decides_itself = False

    def knows(self, cls: type) -> bool:
        return not lacks_methods(cls, Steppable)

    def factory(self, cls: type) -> Factory:
        return cls

    def policy(self, cls: type) -> Policy:
        return Policy()

    def environment(self) -> dict[str, str]:
        return {}

    def misfits(self, cls: type) -> list[Misfit]:
        return misfits_of(cls)

    def probe(self, factory: Factory, policy: Policy) -> Misfit | None:
        return probe(factory, policy)

    def config(self, cls: type, config: Config) -> Config:
        return config

    def prepare(self, cls: type, scenario: Scenario) -> Scenario | None:
        return scenario

    def pytest_file(self, cls: type, finding: Finding) -> str | None:
        return None

    def base(self, cls: type) -> type | None:
        return Scheduler if issubclass(cls, Scheduler) and cls is not Scheduler else None

    def lacks(self) -> dict[str, str]:
        return {}


def adapters() -> Sequence[Adapter]:
    """Return every adapter that is installed, the reference's last."""
    return (*(entry.load()() for entry in entry_points(group=GROUP)), ReferenceAdapter())


def adapter_for(cls: type) -> Adapter:
    """Return the adapter of a class's family.

    Raises:
        NotAScheduler: no adapter knows the class.
    """
    for adapter in adapters():
        if adapter.knows(cls):
            return adapter
    lacking = ", ".join(lacks_methods(cls, Steppable))
    raise NotAScheduler(
        f"scheduler {cls.__module__}:{cls.__qualname__} has no method {lacking}; it must have the interface "
        "of onbeat_reference:Scheduler, or be of a family that an adapter knows (vLLM's SchedulerInterface)"
    )
