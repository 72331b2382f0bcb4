"""Processes that are the ranks of a group, for tests."""

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from onbeat_engine.parallel.group import Group, Through
from onbeat_engine.parallel.place import GroupPlace
from onbeat_engine.wire.errors import EngineDead
from onbeat_engine.wire.ports import listen
from onbeat_spec.protocol import GroupSettings

SETTINGS = GroupSettings(2, 4)
TIMEOUT = 20.0
"""Of a collective, in seconds."""

# One server imports torch, once; the ranks are forks of it.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.engine.parallel.serving", "onbeat_engine.parallel.member"])


def run(size: int, do: Callable[..., Any], *args: Any, limit: float = 30.0) -> list[Any]:
    """Call `do(place, *args)` on every rank; return by rank what it returns, the error it raises, or None if it died.

    No process is left; one that is not done after `limit` seconds makes an AssertionError.
    """
    with listen() as server:
        places = [GroupPlace(rank, size, port=server.getsockname()[1]) for rank in range(size)]
        pairs = [_context.Pipe(duplex=False) for _ in places]
        ranks = [
            _context.Process(target=_rank, args=(place, send, server if place.rank == 0 else None, do, args))
            for place, (_, send) in zip(places, pairs, strict=True)
        ]
        for rank in ranks:
            rank.start()
        for _, send in pairs:
            send.close()
    answers: dict[Connection, Any] = {}
    end = time.monotonic() + limit
    while left := [get for get, _ in pairs if get not in answers]:
        ready = wait(left, timeout=max(0.0, end - time.monotonic()))
        if not ready:
            break
        for get in ready:
            assert isinstance(get, Connection)
            try:
                answers[get] = get.recv()
            except EOFError:
                answers[get] = None
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
    stuck = [number for number, rank in enumerate(ranks) if rank.is_alive()]
    for rank in ranks:
        rank.kill()
        rank.join()
    assert not stuck, f"ranks {stuck} were not done after {limit:g} s"
    return [answers[get] for get, _ in pairs]


def well(answers: list[Any]) -> list[Any]:
    """Return what ranks returned; raise an error of one, the cause rather than what follows from it elsewhere."""
    for error in sorted(
        (one for one in answers if isinstance(one, Exception)), key=lambda e: isinstance(e, EngineDead)
    ):
        raise error
    return answers


def _rank(place: GroupPlace, send: Connection, server: Any, do: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    if server is not None:
        place = GroupPlace(place.rank, place.size, port=place.port, listening=os.dup(server.fileno()))
        server.close()
    try:
        answer = do(place, *args)
    except Exception as error:
        error.add_note(traceback.format_exc())
        answer = error
    send.send(answer)


def join(
    place: GroupPlace,
    settings: GroupSettings = SETTINGS,
    through: Through = "auto",
    timeout: float = TIMEOUT,
    **shared: Any,
) -> Group:
    return Group.join(place, settings, shared, through=through, timeout=timeout, start_timeout=20.0)
