"""The invariants of a lock-step group, over one lock step of all its ranks.

A predicate says nothing where the ranks recorded nothing that it could read; whoever evaluates it counts that apart
(`SPEAKS`), so that silence is never taken for a pass.
"""

from collections.abc import Callable, Mapping

from onbeat_spec.catalogue import Verdict, declare_group, predicate
from onbeat_spec.records import GroupStep

declare_group("phase-agrees", "All ranks of a group see the same phase at the same step.")
declare_group(
    "collectives-align",
    "Every running rank takes part in the same sequence of collectives, zero-token steps included.",
    "B78",
    "B80",
)
declare_group(
    "wake-not-lost",
    "A request accepted by any rank gets the whole group stepping, and no rank with one that may run runs a dummy.",
    "B73",
    "B77",
)
declare_group(
    "pause-agreed",
    "A rank stops only when all agreed; after that no stale wake starts it; resume is idempotent.",
    "B74",
    "B76",
)
declare_group(
    "sync-interval-free",
    "None of the above depends on how often ranks exchange finish state, if all use the same interval.",
    "B81",
    "B82",
)
declare_group("end-is-clear", "When a rank dies all others end, with the reason, and none waits for ever.")


@predicate("phase-agrees", "group")
def phase_agrees(step: GroupStep) -> Verdict:
    """Compare the recorded phases."""
    phases = {rank: each.lock.phase for rank, each in step.members.items() if each.lock.phase is not None}
    if len(set(phases.values())) > 1:
        return f"phases differ: {_by_rank(phases)}"
    return None


@predicate("collectives-align", "group")
def collectives_align(step: GroupStep) -> Verdict:
    """Look for ranks that stayed away, and compare the recorded collectives."""
    if step.missing:
        absent = ", ".join(map(str, step.missing))
        return f"rank {absent} took no part in it; {', '.join(map(str, step.members))} did"
    calls = {rank: each.lock.collectives for rank, each in step.members.items() if each.lock.collectives is not None}
    if len(set(calls.values())) > 1:
        return f"collectives differ: {_by_rank({rank: ' '.join(names) or 'none' for rank, names in calls.items()})}"
    return None


@predicate("wake-not-lost", "group")
def work_is_taken_up(step: GroupStep) -> Verdict:
    """Who has a request that may run takes no dummy, and does not stop with all others."""
    stop = all(each.lock.last for each in step.members.values())
    for rank, each in step.members.items():
        if each.may_run and each.dummy:
            return f"rank {rank} runs a dummy, and has {each.live} requests that may run"
        if each.may_run and stop:
            return f"all ranks stop, and rank {rank} has {each.live} requests"
    return None


@predicate("pause-agreed", "group")
def stops_together(step: GroupStep) -> Verdict:
    """Whoever stops after this lock step does so with all others."""
    stops = {rank: each.lock.last for rank, each in step.members.items() if each.lock.last is not None}
    if len(set(stops.values())) > 1:
        return f"ranks disagree whether to stop: {_by_rank(stops)}"
    return None


@predicate("sync-interval-free", "group")
def _unseen(step: GroupStep) -> Verdict:
    """Nothing: a trace was made with one interval, and does not tell what another would have changed."""
    return None


@predicate("end-is-clear", "group")
def _over(step: GroupStep) -> Verdict:
    """Nothing: who died takes part in no lock step."""
    return None


SPEAKS: dict[str, Callable[[GroupStep], bool]] = {
    "phase-agrees": lambda step: sum(each.lock.phase is not None for each in step.members.values()) > 1,
    "collectives-align": lambda step: len(step.members) + len(step.missing) > 1,
    "wake-not-lost": lambda step: (
        len(step.members) > 1
        and (all(each.lock.last for each in step.members.values()) or any(each.dummy for each in step.members.values()))
    ),
    "pause-agreed": lambda step: len(step.members) > 1 and any(each.lock.last for each in step.members.values()),
    "sync-interval-free": lambda step: False,
    "end-is-clear": lambda step: False,
}
"""Whether the records of a lock step say anything about an invariant."""


def _by_rank(values: Mapping[int, object]) -> str:
    return ", ".join(f"rank {rank} {value}" for rank, value in values.items())
