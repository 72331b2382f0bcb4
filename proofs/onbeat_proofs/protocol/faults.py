"""Faults, planted: each replaces a function or two of the protocol, and the checker has to find it.

One of three ranks is there for the checker itself: the invariants must not be silent on larger groups than two. Of the
public reports on data-parallel coordination these are the ones about the protocol; those about load balancing,
B84, B86 and B87, are planted in `theorems/balance_faults.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onbeat_proofs.protocol.functions import Text
from onbeat_proofs.protocol.state import GroupScope
from onbeat_spec import protocol
from onbeat_spec.protocol import Agreement, Effect, Event, Front, GroupSettings, PauseMode, Rank, Sent, Turn

SMALL = GroupScope(requests=2, controls=2)


@dataclass(frozen=True)
class Fault:
    """A fault as a variant of the protocol.

    Attributes:
        case: the public report that it comes from; empty: none.
        says: what the variant does wrong.
        finds: the invariant that it violates first.
    """

    case: str
    says: str
    text: Text
    finds: str
    scope: GroupScope = SMALL

    @property
    def name(self) -> str:
        """For files: the case, or what it says where there is no public report."""
        return self.case or self.says.replace(",", "").replace(" ", "-")


def _read_without_waking(rank: Rank, event: Event) -> tuple[Rank, Effect]:
    after, effect = protocol.read(rank, event)
    if effect == "accept" and rank.read == rank.agreed:
        after = after._replace(agreed=after.read)
    return after, effect


def _complete_when_reports_agree(front: Front) -> bool:
    return protocol.complete(front) or (front.paused is not None and len(set(front.stopped)) == 1)


def _request_with_forecast(front: Front, rank: int) -> tuple[Front, Sent]:
    if front.paused is not None:
        return front._replace(last=front.last + 1), ()
    return protocol.request(front, rank)


def _first_request_to_its_rank_only(front: Front, rank: int) -> tuple[Front, Sent]:
    after, sent = protocol.request(front, rank)
    return after, tuple(event for event in sent if event[0] == rank or front.last > 0)


def _nothing_without_tokens(turn: Turn, tokens: int) -> tuple[str, ...]:
    return () if turn.kind == "step" and tokens == 0 else protocol.collectives(turn, tokens)


def _one_group(ranks: int, coupled: bool) -> tuple[tuple[int, ...], ...]:
    return protocol.groups(ranks, True)


def _no_dummies(rank: Rank, has_work: bool, settings: GroupSettings) -> Turn:
    turn = protocol.before_step(rank, has_work, settings)
    return Turn("idle") if turn.kind == "dummy" else turn


def _first_settings(settings: Sequence[GroupSettings]) -> GroupSettings:
    return settings[0]


def _forwards_before_the_first_exchange(rank: Rank, settings: GroupSettings, agreement: Agreement | None) -> Rank:
    after = protocol.after_step(rank, settings, agreement)
    return after._replace(left=settings.sync) if after.read == after.agreed else after


def _only_newest_of_all(front: Front, rank: int, number: int) -> Front:
    return front if number <= max(front.stopped, default=0) else protocol.report(front, rank, number)


def _no_reports_from_one(front: Front, rank: int, number: int) -> Front:
    return front if len(front.members) == 1 else protocol.report(front, rank, number)


def _stop_without_comparing(rank: Rank, settings: GroupSettings, agreement: Agreement | None) -> Rank:
    if agreement is not None:
        agreement = agreement._replace(lowest=agreement.highest)
    return protocol.after_step(rank, settings, agreement)


def _dead_unnoticed(front: Front, rank: int) -> tuple[Front, Sent]:
    return front, ()


def _dead_unnoticed_if_leaving(front: Front, rank: int) -> tuple[Front, Sent]:
    return (front, ()) if rank in front.leaving else protocol.died(front, rank)


def _abort_nothing(rank: Rank, event: Event) -> tuple[Rank, Effect]:
    after, effect = protocol.read(rank, event)
    return after, effect if after.ended or effect == "accept" else "none"


def _dummy_off_the_beat(rank: Rank, has_work: bool, settings: GroupSettings) -> Turn:
    turn = protocol.before_step(rank, has_work, settings)
    return turn._replace(kind="dummy") if turn.kind == "step" and turn.phase and rank.members > 2 else turn


def _restart_unpaused(front: Front) -> tuple[Front, Sent]:
    return Front(front.members), ()


def _pause_of_the_ended_forgotten(front: Front, mode: PauseMode, *, holds: bool) -> tuple[Front, Sent]:
    return (front, ()) if front.ended else protocol.pause(front, mode, holds=holds)


def _idle_orphan(rank: Rank, why: str) -> tuple[Rank, Effect]:
    return (rank, "none") if rank.read == rank.agreed else protocol.lost(rank, why)


FAULTS = (
    Fault("B73", "a request does not wake the rank it goes to", Text(read=_read_without_waking), "wake-not-lost"),
    Fault(
        "B74",
        "a pause is complete once the reports agree with each other, wakes under way or not",
        Text(complete=_complete_when_reports_agree),
        "pause-agreed",
    ),
    Fault(
        "B76",
        "a request that comes while paused counts as running, and is sent to nobody",
        Text(request=_request_with_forecast),
        "pause-agreed",
        GroupScope(requests=2, controls=2, holds=True),
    ),
    Fault(
        "B77",
        "the first request of all wakes nobody else",
        Text(request=_first_request_to_its_rank_only),
        "wake-not-lost",
    ),
    Fault(
        "B78",
        "a step without tokens takes part in nothing",
        Text(collectives=_nothing_without_tokens),
        "collectives-align",
        GroupScope(requests=2, controls=2, settings=(GroupSettings(1, 2),)),
    ),
    Fault(
        "B80",
        "ranks that share nothing are one group, and without work they take no turn",
        Text(groups=_one_group, before_step=_no_dummies),
        "collectives-align",
        GroupScope(requests=2, controls=2, coupled=False),
    ),
    Fault(
        "B81",
        "ranks may exchange at different intervals",
        Text(common=_first_settings),
        "collectives-align",
        GroupScope(requests=2, controls=2, settings=(GroupSettings(2, 1), GroupSettings(2, 2))),
    ),
    Fault(
        "B82",
        "a busy period begins with an interval of forwards",
        Text(after_step=_forwards_before_the_first_exchange),
        "sync-interval-free",
    ),
    Fault(
        "B88",
        "ranks that share nothing do not report",
        Text(report=_no_reports_from_one),
        "pause-agreed",
        GroupScope(requests=2, controls=2, coupled=False),
    ),
    Fault(
        "B89",
        "a report no newer than the newest of all ranks is dropped",
        Text(report=_only_newest_of_all),
        "pause-agreed",
    ),
    Fault(
        "",
        "ranks stop without comparing what they have read",
        Text(after_step=_stop_without_comparing),
        "collectives-align",
    ),
    Fault(
        "",
        "the front end makes nothing of a death",
        Text(died=_dead_unnoticed),
        "end-is-clear",
        GroupScope(requests=1, controls=1, deaths=1),
    ),
    Fault(
        "",
        "the front end makes nothing of the death of a rank that is leaving",
        Text(died=_dead_unnoticed_if_leaving),
        "end-is-clear",
        GroupScope(requests=1, controls=2, removals=1, deaths=1),
    ),
    Fault(
        "",
        "a pause that aborts leaves the requests that a rank has",
        Text(read=_abort_nothing),
        "pause-agreed",
        GroupScope(requests=1, controls=1),
    ),
    Fault(
        "",
        "ranks that are started again are not told that their group is paused",
        Text(restart=_restart_unpaused),
        "pause-agreed",
        GroupScope(requests=1, controls=1, deaths=1, restarts=1),
    ),
    Fault(
        "",
        "a pause is forgotten that comes while a group is started again",
        Text(pause=_pause_of_the_ended_forgotten),
        "pause-agreed",
        GroupScope(requests=1, controls=1, deaths=1, restarts=1),
    ),
    Fault(
        "",
        "an idle rank stays when its front end is gone",
        Text(lost=_idle_orphan),
        "end-is-clear",
        GroupScope(requests=1, controls=1, orphans=True),
    ),
    Fault(
        "",
        "in a group of three or more, who has work runs a dummy off the beat",
        Text(before_step=_dummy_off_the_beat),
        "wake-not-lost",
        GroupScope(ranks=3, requests=1, controls=1),
    ),
)
