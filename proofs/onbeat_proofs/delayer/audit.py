"""The audit of one delayer: every check, for every number of ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from onbeat_proofs.delayer import estimate, theorems
from onbeat_proofs.delayer.decision import Decision, Misstep, OfClass
from onbeat_proofs.delayer.graph import Before, explore
from onbeat_proofs.delayer.properties import JUDGES, judge
from onbeat_proofs.delayer.results import HOLDS, VIOLATED, DelayerResult
from onbeat_proofs.delayer.rows import Settings
from onbeat_proofs.delayer.sglang import SGLang
from onbeat_proofs.delayer.sglang_file import Loaded, load
from onbeat_proofs.delayer.sglang_interval import Both, Interval
from onbeat_proofs.foreign.targets import load_class
from onbeat_spec.errors import NotADelayer

OURS = "onbeat_proofs.delayer.cadence:Cadence"


@dataclass(frozen=True, slots=True)
class DelayerJob:
    """What to audit.

    Attributes:
        target: `sglang`, a path to its file or package, `onbeat`, or MODULE:CLASS.
        settings: of the delayer; the ranks in it are those of `ranks` in turn.
        ranks: the sizes of group to try.
        extra: also the checks that not every policy promises.
        tensors: `plain` or `torch`, for SGLang.
        depth: passes after which new states are not followed; None: four times the bound, and eight.
        seconds: for each exploration.
    """

    target: str
    settings: Settings = field(default_factory=Settings)
    ranks: tuple[int, ...] = (2, 3)
    extra: bool = False
    tensors: str = "plain"
    depth: int | None = None
    seconds: float = 120.0


@dataclass(slots=True)
class DelayerReport:
    """What came out.

    Attributes:
        name: of what was audited, its version included.
        file: where SGLang's file is; empty for others.
    """

    job: DelayerJob
    name: str
    file: str
    results: list[DelayerResult] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 1 if something is violated, 2 if something was not decided or not put to the test, 0 if all holds."""
        verdicts = {result.verdict for result in self.results}
        if VIOLATED in verdicts:
            return 1
        return 0 if verdicts == {HOLDS} else 2

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "delayer": self.name,
            "file": self.file,
            "settings": {**self.job.settings.as_json(), "ranks": list(self.job.ranks)},
            "tensors": self.job.tensors,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 2),
            "results": [result.as_json() for result in self.results],
        }


def audit(job: DelayerJob, before: Before | None = None) -> DelayerReport:
    """Run every check.

    Args:
        job: what to audit.
        before: see `graph.explore`.

    Raises:
        NotADelayer: the target cannot be found, loaded, made, or kept apart from its state.
    """
    started = perf_counter()
    report, loaded = None, None
    for ranks in job.ranks:
        settings = replace(job.settings, ranks=ranks)
        decision, loaded = decision_of(job, settings)
        if report is None:
            report = DelayerReport(job, decision.name, "" if loaded is None else str(loaded.file))
        report.results += _exhaustive(job, decision, settings, before)
        if loaded is not None and job.tensors == "plain":
            report.results += theorems.decide(load(job.target, settings), settings)
    if report is None:
        raise NotADelayer("no number of ranks was given; give --ranks 2,3")
    if loaded is not None:
        report.results += estimate.judge(loaded, job.ranks[-1])
    report.seconds = perf_counter() - started
    return report


def decision_of(job: DelayerJob, settings: Settings) -> tuple[Decision, Loaded | None]:
    """Return the group's decision that a job names, and SGLang's module if it is SGLang's.

    Raises:
        NotADelayer: there is none.
    """
    target = OURS if job.target == "onbeat" else job.target
    if ":" in target:
        return OfClass(load_class(target, "delayer", NotADelayer), settings, job.target), None
    if settings.prefill_decode_interval is not None:
        interval = Interval(target, settings)
        if not settings.enable_prefill_delayer:
            return interval, None
        return Both(interval, SGLang(load(target, settings, job.tensors), settings)), None
    loaded = load(target, settings, job.tensors)
    return SGLang(loaded, settings), loaded


def _exhaustive(
    job: DelayerJob, decision: Decision, settings: Settings, before: Before | None
) -> Sequence[DelayerResult]:
    bound = settings.bound
    depth = 4 * bound + 8 if job.depth is None else job.depth
    graph = explore(decision, JUDGES, depth=depth, seconds=job.seconds, before=before)
    try:
        return list(judge(graph, bound, job.extra))
    except Misstep as error:
        raise NotADelayer(f"{decision.name} failed in a pass that went well before: {error}") from error
