"""A run of a group as a message sequence chart: a lane for the front end, one for each rank; time runs down."""

from collections.abc import Sequence
from dataclasses import dataclass

from onbeat_proofs.protocol.explore import GroupExplored
from onbeat_proofs.protocol.state import ABORT, Begun, GroupMember, Move
from onbeat_proofs.protocol.world import GroupWorld
from onbeat_spec.protocol import Event

OWN = {"die": "dies", "end": "reads end", "gone": "notices that the front end is gone"}
"""Moves of one rank without a turn."""


@dataclass(frozen=True)
class ChartRow:
    """One move: what stands in each lane (0 is the front end, rank r is r + 1), a line for each thing that happens."""

    cells: tuple[tuple[str, ...], ...]
    messages: tuple[int, ...] = ()
    """Lanes that a message goes to from the front end; it is read later, see `read` in a cell."""
    together: bool = False
    """All ranks of the row are in one turn."""


def rows(explored: GroupExplored) -> list[ChartRow]:
    """Return the moves of a path; under them, what its last state makes of each rank."""
    world, chart = explored.world, []
    state = world.start()
    for move in explored.path:
        chart.append(_row(world, world.members_of(state), move))
        state = move.state
    if not (explored.path and explored.path[-1].wrong):
        chart.append(
            ChartRow(((), *(_end(world, member, place) for place, member in enumerate(world.members_of(state)))))
        )
    return chart


def text(explored: GroupExplored) -> str:
    """Return a path as a table of text; the violation stands above it."""
    lanes = ["front end", *(f"rank {rank}" for rank in range(explored.scope.ranks))]
    table = rows(explored)
    widths = [
        max(len(lane), *(len(line) for row in table for line in row.cells[place]), 1)
        for place, lane in enumerate(lanes)
    ]
    lines = [f"{explored.invariant}: {explored.message}", "", _line(["", *lanes], [3, *widths], " ")]
    for number, row in enumerate(table, 1):
        height = max(len(cell) for cell in row.cells)
        for index in range(height):
            cells = [cell[index] if index < len(cell) else "" for cell in row.cells]
            lines.append(_line([str(number) if index == 0 else "", *cells], [3, *widths], "=" if row.together else "|"))
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int], bar: str) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    return f" {bar} ".join([f"{padded[0]} {padded[1]}", *padded[2:]]).rstrip()


def _row(world: GroupWorld, before: Sequence[GroupMember], move: Move) -> ChartRow:
    cells: list[tuple[str, ...]] = [()] * (world.scope.ranks + 1)
    kind, *detail = move.label
    after = world.members_of(move.state)
    if kind == "turn":
        taking = [place for place, member in enumerate(before) if not member.gone]
        for place, number in zip(taking, detail[0], strict=True):
            begun = world.begun.values[number]
            cells[place + 1] = (*_begun(before[place], begun), *_left(begun, after[place]))
        return ChartRow(tuple(cells), together=True)
    if kind in ("alone", "fail"):
        place, begun = detail
        last = "goes on alone" if kind == "alone" else "the collective fails"
        cells[place + 1] = (*_begun(before[place], begun), last)
        return ChartRow(tuple(cells))
    if kind in OWN:
        cells[detail[0] + 1] = (OWN[kind],)
        return ChartRow(tuple(cells))
    sent = [place for place, member in enumerate(after) if member.channel not in ((), before[place].channel)]
    number = f"#{after[sent[0]].channel[-1].number} " if sent and kind != "abort" else ""
    events = {
        "request": f"request for rank {detail[0]}",
        "notice": f"rank {detail[0]} is dead",
        "remove": f"remove {detail[0]}",
        "abort": f"abort of a request of rank {detail[0]}",
        "withdraw": "abort of a request that is held",
        "restart": "all ranks are started again",
        "orphan": "dies",
    }
    held = ", held" if detail[-1] == "hold" else ""
    cells[0] = (number + events.get(str(kind), f"{kind} {detail[0]}".strip()) + held,)
    for place in sent:
        cells[place + 1] = (f"--> {_event(after[place].channel[-1])}",)
    return ChartRow(tuple(cells), tuple(place + 1 for place in sent))


def _event(event: Event) -> str:
    if event == ABORT:
        return "abort"
    return f"#{event.number} {event.kind}" + (f" {event.mode}" if event.kind == "pause" else "")


def _begun(before: GroupMember, begun: Begun) -> list[str]:
    lines = [f"reads {_event(event)}" for event in before.channel[: begun.reads]]
    turn = begun.turn
    if turn.vote is not None:
        return [*lines, f"exchange: {turn.vote.read}, {'work' if turn.vote.work else 'no work'}"]
    skipped = "" if begun.calls else ", takes part in nothing"
    return [*lines, f"{turn.kind}, phase {turn.phase}{', throttled' if turn.throttle else ''}{skipped}"]


def _left(begun: Begun, after: GroupMember) -> list[str]:
    if after.rank.ended:
        return [f"ends: {after.rank.ended}"]
    lines = [f"{begun.member.work - after.work} requests end"] if after.work != begun.member.work else []
    return [*lines, f"stops at {after.rank.agreed}"] if after.rank.read == after.rank.agreed else lines


def _end(world: GroupWorld, member: GroupMember, place: int) -> tuple[str, ...]:
    if member.gone or member.dead:
        return ("gone",)
    waits = any(world.begun.values[number].calls for number in world.begins(world.members.number(member), place + 2))
    reads = [f"has not read {_event(event)}" for event in member.channel]
    return (*reads, "waits in its next turn" if waits else "is idle")
