"""SGLang's prefill-decode interval as a decision of a group: after a prefill so many passes of decodes only.

The rule is two methods of SGLang's scheduler, which needs a GPU and much else to be made. So the two are taken out of
its file and run, as they stand, on an object that has the four attributes they use; what surrounds them is ours, as in
`get_next_batch_to_run`: a rank that defers prefills nothing; of a group with data-parallel attention every rank is told
whether any rank prefilled; a pass in which nobody has anything to run has no batch. Seen: 0.5.22, 0.5.23.
"""

import ast
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onbeat_proofs.delayer.decision import Misstep, PassResult, State, guarded
from onbeat_proofs.delayer.rows import Row, Settings
from onbeat_proofs.delayer.sglang import SGLang
from onbeat_proofs.delayer.sglang_file import find, version_of
from onbeat_spec.errors import NotADelayer

DEFER, ARM = "_should_defer_prefill", "_arm_prefill_decode_interval"
LEFT = "_prefill_decode_interval_remaining"


class Interval:
    """The group's decision; `prefill_decode_interval` is the stated bound.

    Raises:
        NotADelayer: the scheduler's file is not there, or has no such rule.
    """

    prefill_excludes_decode = True

    def __init__(self, target: str, settings: Settings) -> None:
        self.settings = settings
        self.file = scheduler_file(target)
        self.name = f"SGLang {version_of(self.file)}, prefill_decode_interval"
        self._defer, self._arm = methods(self.file)

    def initial(self) -> State:
        """Return that no interval is under way."""
        return (0,) * self.settings.ranks

    def rows(self) -> Sequence[Row]:
        """Return all that the rule looks at: whether there is a prefill, and the running requests."""
        running = range(self.settings.max_running_requests + 1)
        return [*(Row(running=n) for n in running), *(Row(True, n, 0, 1) for n in running)]

    def step(self, state: State, rows: Sequence[Row]) -> PassResult:
        """Ask every rank, run what may run, and tell every rank what ran."""
        defers, left = self.defers(state, rows)
        allow = tuple(not deferred for deferred in defers)
        return PassResult(allow, self.after(left, rows, allow))

    def defers(self, state: State, rows: Sequence[Row]) -> tuple[list[bool], State]:
        """Return whether each rank defers its prefills, and what is left of its interval then."""
        ranks = [self._scheduler(own) for own in state]
        defers = [bool(guarded(self._defer, rank, _batch(row))) for rank, row in zip(ranks, rows, strict=True)]
        return defers, tuple(getattr(rank, LEFT) for rank in ranks)

    def after(self, state: State, rows: Sequence[Row], allow: Sequence[bool]) -> State:
        """Return what is left of each rank's interval after a pass of what was allowed."""
        ranks = [self._scheduler(own) for own in state]
        prefills = [row.prefillable and ok for row, ok in zip(rows, allow, strict=True)]
        runs = any(prefills) or any(row.running for row in rows)
        for rank, prefill in zip(ranks, prefills, strict=True):
            mode = SimpleNamespace(is_extend=lambda own=prefill: own)
            batch = SimpleNamespace(is_extend_in_batch=any(prefills), forward_mode=mode)
            guarded(self._arm, rank, batch if runs else None)
        return tuple(getattr(rank, LEFT) for rank in ranks)

    def show(self, state: State) -> list[str]:
        """Return the passes that are left of each rank's interval."""
        return [str(own) for own in state]

    def _scheduler(self, left: Hashable) -> Any:
        return SimpleNamespace(
            prefill_decode_interval=self.settings.prefill_decode_interval,
            prefill_decode_interval_min_bs=self.settings.prefill_decode_interval_min_bs,
            require_mlp_sync=True,
            **{LEFT: left},
        )


class Both:
    """The interval with SGLang's delayer behind it: a rank that defers asks no delayer, and so sends no row."""

    prefill_excludes_decode = True

    def __init__(self, interval: Interval, delayer: SGLang) -> None:
        self.name = f"{interval.name} and PrefillDelayer"
        self._interval = interval
        self._delayer = delayer

    def initial(self) -> State:
        """Return both states of every rank."""
        return tuple(zip(self._interval.initial(), self._delayer.initial(), strict=True))

    def rows(self) -> Sequence[Row]:
        """Return all that the delayer looks at; the interval looks at less."""
        return self._delayer.rows()

    def step(self, state: State, rows: Sequence[Row]) -> PassResult:
        """Let the delayer decide where no rank defers. Raises Misstep where some do: the others wait for their rows."""
        left, delayed = _apart(state)
        defers, left = self._interval.defers(left, rows)
        if len(set(defers)) > 1:
            absent, waiting = ([rank for rank, one in enumerate(defers) if one is answer] for answer in (True, False))
            raise Misstep(f"ranks {waiting} exchange rows for the delayer, ranks {absent} defer and send none: a hang")
        allow = (False,) * len(rows)
        if not any(defers):
            allow, delayed = self._delayer.step(delayed, rows)
        left = self._interval.after(left, rows, allow)
        return PassResult(allow, tuple(zip(left, delayed, strict=True)))

    def show(self, state: State) -> list[str]:
        """Return what is left of the interval, and the delayer's state."""
        left, delayed = _apart(state)
        shown = zip(self._interval.show(left), self._delayer.show(delayed), strict=True)
        return [f"{interval}; {own}" for interval, own in shown]


def _apart(state: State) -> tuple[State, State]:
    left, delayed = zip(*state, strict=True)
    return left, delayed


def _batch(row: Row) -> Any:
    return SimpleNamespace(batch_size=lambda: row.running)


def scheduler_file(target: str) -> Path:
    """Return the scheduler's file, which lies beside the delayer's.

    Raises:
        NotADelayer: there is none.
    """
    file = find(target).with_name("scheduler.py")
    if not file.is_file():
        raise NotADelayer(f"there is no file {file}; give a folder with the whole package sglang")
    return file


def methods(file: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two functions as they stand in a file.

    Raises:
        NotADelayer: they are not in it.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise NotADelayer(f"{file} cannot be read: {error}") from error
    functions = {
        node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in (DEFER, ARM)
    }
    if len(functions) < 2:
        raise NotADelayer(f"{file} has no {DEFER} and {ARM}: SGLang {version_of(file)} has no prefill-decode interval")
    lazy = ast.parse("from __future__ import annotations").body  # the annotations name classes that are not here
    names: dict[str, Any] = {}
    exec(compile(ast.Module([*lazy, *functions.values()], []), str(file), "exec"), names)
    return names[DEFER], names[ARM]
