"""The invariants of a lock-step group, over one lock step of all its ranks.

A predicate says nothing where the ranks recorded nothing that it could read; the premise tells, so that silence is
never taken for a pass. Two invariants have no predicate over a lock step, and no trace shows them: one compares whole
runs, the other is about what follows when no lock step does.
"""

from collections.abc import Mapping

from onbeat_spec.catalogue import Invariant, Premise, Verdict
from onbeat_spec.records import GroupStep

TWO_PHASES = Premise(
    "a lock step with the phases of two ranks",
    lock_step=lambda step: sum(member.lock.phase is not None for member in step.members.values()) > 1,
)
phase_agrees = Invariant(
    "phase-agrees",
    "All ranks of a group see the same phase at the same step.",
    TWO_PHASES,
    in_traces=TWO_PHASES,
)


@phase_agrees.over("group")
def phases_agree(step: GroupStep) -> Verdict:
    """Compare the recorded phases."""
    phases = {rank: member.lock.phase for rank, member in step.members.items() if member.lock.phase is not None}
    if len(set(phases.values())) > 1:
        return f"phases differ: {_by_rank(phases)}"
    return None


TWO_RANKS = Premise("a lock step of two ranks", lock_step=lambda step: len(step.members) + len(step.missing) > 1)
collectives_align = Invariant(
    "collectives-align",
    "Every running rank takes part in the same sequence of collectives, zero-token steps included.",
    TWO_RANKS,
    in_traces=TWO_RANKS,
    cases=("B78", "B80"),
)


@collectives_align.over("group")
def calls_align(step: GroupStep) -> Verdict:
    """Look for ranks that stayed away, and compare the recorded collectives."""
    if step.missing:
        absent = ", ".join(map(str, step.missing))
        return f"rank {absent} took no part in it; {', '.join(map(str, step.members))} did"
    locks = {rank: member.lock for rank, member in step.members.items()}
    calls = {rank: lock.collectives for rank, lock in locks.items() if lock.collectives is not None}
    if len(set(calls.values())) > 1:
        return f"collectives differ: {_by_rank({rank: ' '.join(names) or 'none' for rank, names in calls.items()})}"
    return None


def _dummy_or_stop(step: GroupStep) -> bool:
    members = step.members.values()
    return len(members) > 1 and (all(member.lock.last for member in members) or any(member.dummy for member in members))


DUMMY_OR_STOP = Premise("a dummy, or a lock step after which all ranks stop", lock_step=_dummy_or_stop)
wake_not_lost = Invariant(
    "wake-not-lost",
    "A request accepted by any rank gets the whole group stepping, and no rank with one that may run runs a dummy.",
    DUMMY_OR_STOP,
    in_traces=DUMMY_OR_STOP,
    cases=("B73", "B77"),
)


@wake_not_lost.over("group")
def work_is_taken_up(step: GroupStep) -> Verdict:
    """Who has a request that may run takes no dummy, and does not stop with all others."""
    stop = all(member.lock.last for member in step.members.values())
    for rank, member in step.members.items():
        if member.may_run and member.dummy:
            return f"rank {rank} runs a dummy, and has {member.live} requests that may run"
        if member.may_run and stop:
            return f"all ranks stop, and rank {rank} has {member.live} requests"
    return None


SOMEBODY_STOPS = Premise(
    "a lock step after which a rank stops",
    lock_step=lambda step: len(step.members) > 1 and any(member.lock.last for member in step.members.values()),
)
pause_agreed = Invariant(
    "pause-agreed",
    "A rank stops only when all agreed; after that no stale wake starts it; resume is idempotent.",
    SOMEBODY_STOPS,
    in_traces=SOMEBODY_STOPS,
    cases=("B74", "B76"),
)


@pause_agreed.over("group")
def stops_together(step: GroupStep) -> Verdict:
    """Whoever stops after this lock step does so with all others."""
    stops = {rank: member.lock.last for rank, member in step.members.items() if member.lock.last is not None}
    if len(set(stops.values())) > 1:
        return f"ranks disagree whether to stop: {_by_rank(stops)}"
    return None


sync_interval_free = Invariant(
    "sync-interval-free",
    "None of the above depends on how often ranks exchange finish state, if all use the same interval.",
    Premise("the same run with another interval: a trace has one"),
    cases=("B81", "B82"),
)


end_is_clear = Invariant(
    "end-is-clear",
    "When a rank dies all others end, with the reason, and none waits for ever.",
    Premise("what the others do once a rank has died: they write no more lock steps"),
)


def _dummy_beside_others(step: GroupStep) -> bool:
    """Whether some dummy was recorded with a count of its rows: without that nothing is known of its experts."""
    fillers = [member.lock.filler for member in step.members.values()]
    return len(fillers) > 1 and any(filler is not None and filler.expert_rows is not None for filler in fillers)


DUMMY_COUNTED = Premise("a lock step of two ranks with what a dummy took", lock_step=_dummy_beside_others)
fillers_are_free = Invariant(
    "fillers-are-free",
    "A dummy takes no KV block, reaches no expert, and keeps no other rank from its forward.",
    DUMMY_COUNTED,
    in_traces=DUMMY_COUNTED,
    cases=("N02", "N06"),
    by_proof=False,
)


@fillers_are_free.over("group")
def dummies_take_nothing(step: GroupStep) -> Verdict:
    """Read what each dummy took; beside one, whoever scheduled tokens took part in a forward."""
    for rank, member in step.members.items():
        filler = member.lock.filler
        if filler is not None and filler.blocks != 0:
            return f"the dummy of rank {rank} took {filler.blocks} KV blocks"
        if filler is not None and filler.expert_rows:
            return f"{filler.expert_rows} rows of the dummy of rank {rank} reached an expert"
    if any(member.dummy for member in step.members.values()):
        for rank, member in step.members.items():
            calls = member.lock.collectives
            if member.tokens > 0 and calls is not None and not set(calls) - {"exchange"}:
                return f"rank {rank} scheduled {member.tokens} tokens beside a dummy, and took part in no forward"
    return None


def _by_rank(values: Mapping[int, object]) -> str:
    return ", ".join(f"rank {rank} {value}" for rank, value in values.items())
