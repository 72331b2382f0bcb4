"""The classes that `findings.py` audits: vLLM's own, and those of packages that derive from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tools.vllm_env import ALL

SYNC, ASYNC = "vllm.v1.core.sched.scheduler:Scheduler", "vllm.v1.core.sched.async_scheduler:AsyncScheduler"

SPYRE_RUNNER = """\
from vllm.v1.outputs import ModelRunnerOutput as SpyreModelRunnerOutput

SpyreModelRunnerOutput.tkv = 0
"""
"""Stands in for the model runner of the Spyre cards, of which the scheduler needs the type of its outputs alone."""
SPYRE_BLOCKS = """\
from sendnn_inference.v1.core.scheduler import ChunkedPrefillSpyreScheduler

ChunkedPrefillSpyreScheduler.onbeat_block_size = 64
"""
"""Says what the class asks of its configuration."""


@dataclass(frozen=True, slots=True)
class Target:
    """One class beside one vLLM release.

    Attributes:
        label: names it on the command line and in file names.
        cls: module:Class.
        vllm: the release.
        distribution: what is installed for it, as name==version; empty: the class is vLLM's own.
        extras: what else is.
        stubs: files that are written into the package's folder, because what they stand for needs hardware.
        environment: variables that the class wants.
        budget: of the audit.
        needs: what was needed to drive it, beside the packages.
        note: what is meant, and why the class is here.
    """

    label: str
    cls: str
    vllm: str
    distribution: str = ""
    extras: tuple[str, ...] = ()
    stubs: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    budget: str = "quick"
    needs: str = ""
    note: str = ""

    @property
    def stock(self) -> bool:
        """The class is vLLM's own."""
        return not self.distribution

    @property
    def asynchronous(self) -> bool:
        """The class is vLLM's own that schedules ahead of outputs."""
        return self.cls == ASYNC


def _stock(version: str, budget: str) -> list[Target]:
    names = (("sync", SYNC), ("async", ASYNC))
    return [Target(f"vllm-{version}-{name}", cls, version, budget=budget) for name, cls in names]


STOCK = [target for version in reversed(ALL) for target in _stock(version, "standard")]
THIRD = [
    Target(
        "traceloom-0.33.0",
        "traceloom_vllm_scheduler:TracingScheduler",
        "0.33.0",
        "traceloom-vllm-context==0.1.0",
        note="Hands every call on and records the step afterwards.",
    ),
    Target(
        "traceloom-async-0.33.0",
        "traceloom_vllm_scheduler:TracingAsyncScheduler",
        "0.33.0",
        "traceloom-vllm-context==0.1.0",
        note="Hands every call on and records the step afterwards.",
    ),
    Target(
        "agentinfer-0.25.0",
        "agentinfer.agentcache.core.scheduler:AgentCacheSyncSchedulerBridge",
        "0.25.0",
        "agentinfer-zmj-test==0.1.1",
        note=(
            "Keeps the requests of agents back before they reach vLLM's queues. The audit sends no such requests, so "
            "the result shows that other requests pass unharmed, and nothing about the admission of agents."
        ),
    ),
    Target(
        "agentinfer-0.33.0",
        "agentinfer.agentcache.core.scheduler:AgentCacheSyncSchedulerBridge",
        "0.33.0",
        "agentinfer-zmj-test==0.1.1",
        note=(
            "With a vLLM newer than those it was written for: the misfits are reported before anything runs, and then"
            " shown by runs."
        ),
    ),
    Target(
        "ascend-0.24.0",
        "vllm_ascend.core.recompute_scheduler:RecomputeScheduler",
        "0.24.0",
        "vllm-ascend==0.23.0",
        note=(
            "With a vLLM one release newer than the package's number; the engine of that earlier release passed no "
            "flag. So this is no fault of the package, but the result of upgrading vLLM alone. The class copies "
            "vLLM's loop, so no change of the loop reaches it."
        ),
    ),
    Target(
        "sendnn-0.28.0",
        "onbeat_sendnn:ChunkedPrefillSpyreScheduler",
        "0.28.0",
        "sendnn-inference==2.6.3",
        stubs={"sendnn_inference/v1/worker/spyre_model_runner.py": SPYRE_RUNNER, "onbeat_sendnn.py": SPYRE_BLOCKS},
        environment={"VLLM_DT_MAX_BATCH_TKV_LIMIT": "131072"},
        note=(
            "By its own description prefills run one at a time, and never in one step with decodes; this is "
            "deliberate, because of the hardware. For that it takes the decodes out of `running` before vLLM's loop, "
            "which then sees no decode and holds nothing: the flag is accepted and handed on, and has no effect. This"
            " explains the vacuous verdicts and the differences from the policy text. Other requests wait in a "
            "separate list while vLLM's loop writes the saturation flag, so the flag says that no request waits. The "
            "class supports neither priority scheduling nor a connector that loads; both end in the errors below."
        ),
        needs="the module of the hardware's model runner is replaced by two lines, and blocks have 64 tokens",
    ),
    Target(
        "omni-0.30.0",
        "vllm_omni.core.sched.omni_ar_scheduler:OmniARScheduler",
        "0.30.0",
        "vllm-omni==0.30.0",
        ("aenum==3.1.16", "loguru", "omegaconf", "antlr4-python3-runtime==4.9.3", "tiktoken", "prettytable"),
        note=(
            "Takes the flag and hands it on; its additions concern stages that the requests of an audit do not have."
        ),
    ),
]
TARGETS = [*STOCK, *THIRD]
