"""What the audit has to know about vLLM's family of schedulers."""

import sys
from dataclasses import replace

from onbeat_proofs.audit.results import Finding
from onbeat_proofs.audit.static.signature import Misfit
from onbeat_proofs.audit.vllm import library
from onbeat_proofs.audit.vllm.facade import VllmScheduler
from onbeat_proofs.audit.vllm.releases import text_of
from onbeat_proofs.audit.vllm.shape import own_base
from onbeat_proofs.audit.vllm.static.compare import misfits_of_vllm
from onbeat_proofs.audit.vllm.testfile import test_file
from onbeat_proofs.foreign.families import Factory
from onbeat_proofs.foreign.policies import make_policy
from onbeat_proofs.scenarios.operations import Add, Ineligible, RemoteFailed, Scenario, flatten
from onbeat_spec.config import Config
from onbeat_spec.policy import Policy

FEW_BLOCKS = 64
INTERFACE = "vllm.v1.core.sched.interface", "SchedulerInterface"


class VllmAdapter:
    """Subclasses of vLLM's `SchedulerInterface`, from 0.24.0 to 0.33.0."""

    decides_itself = True

    def knows(self, cls: type) -> bool:
        return any((base.__module__, base.__name__) == INTERFACE for base in cls.__mro__)

    def factory(self, cls: type) -> Factory:
        def make(config: Config, policy: Policy) -> VllmScheduler:
            return VllmScheduler(cls, config)

        make.__name__ = cls.__name__
        return make

    def policy(self, cls: type) -> Policy:
        return make_policy(text_of(cls), f"{cls.__name__}.onbeat_policy")

    def environment(self) -> dict[str, str]:
        return {"vllm": library.full_version(), "python": ".".join(map(str, sys.version_info[:3]))}

    def misfits(self, cls: type) -> list[Misfit]:
        library.version()
        return misfits_of_vllm(cls)

    def probe(self, factory: Factory, policy: Policy) -> Misfit | None:
        return None

    def config(self, cls: type, config: Config) -> Config:
        """Leave out what vLLM has not: a bound of holds, a deadline for loads, drafts with steps ahead of outputs.

        A class that can do with large blocks only says so by its attribute `onbeat_block_size`, in tokens.
        """
        config = replace(config, block_size=max(config.block_size, getattr(cls, "onbeat_block_size", 1)))
        config = replace(config, remote_load_timeout=0, max_hold_steps=max(64, config.prefill_schedule_interval))
        # The flag that the engine passes is that of a group in lock step; a rank on its own gets none.
        config = replace(config, data_parallel_size=2 if config.prefill_schedule_interval > 1 else 1)
        if library.is_asynchronous(cls):
            return replace(config, num_draft_tokens=0)
        return replace(config, async_depth=1)

    def prepare(self, cls: type, scenario: Scenario) -> Scenario | None:
        """Return a scenario with no more blocks than it needs: every one of them is copied with every copy."""
        config = scenario.config
        if config.remote_load_timeout or config.async_depth > (2 if library.is_asynchronous(cls) else 1):
            return None
        if config.num_draft_tokens and library.is_asynchronous(cls):
            return None
        ops = [op for _, op in flatten(scenario.steps)]
        within = {op.id for op in ops if isinstance(op, Add) and op.remote_tokens and op.remote_mode == "sync"}
        if any(isinstance(op, Ineligible) or (isinstance(op, RemoteFailed) and op.id in within) for op in ops):
            return None
        size = config.block_size
        most = sum(-(-(op.prompt + op.max_tokens) // size) for op in ops if isinstance(op, Add)) + 1
        config = replace(config, num_blocks=min(config.num_blocks, max(most, FEW_BLOCKS)))
        return replace(scenario, config=self.config(cls, config))

    def base(self, cls: type) -> type | None:
        """Return the nearest class of vLLM's own; None for one of these."""
        parent: type = own_base(cls)
        return None if parent is cls else parent

    def lacks(self) -> dict[str, str]:
        """vLLM's remote loads have no deadline."""
        return {"load-bounded": "a remote load has no deadline in vLLM"}

    def pytest_file(self, cls: type, finding: Finding) -> str | None:
        """Return a pytest file that needs only vLLM, if the class can be imported by name."""
        if cls.__module__.startswith("onbeat_file_") or cls.__module__ == "__main__":
            return None
        return test_file(finding, cls.__module__, cls.__qualname__, library.full_version())
