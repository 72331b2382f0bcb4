"""SGLang's decision, for all values: the real function, called with symbolic ints.

Symbolic are the rows of two or three ranks, `max_delay_passes`, `max_running_requests` and the passes delayed so far:
any state of the count, reachable or not. The states of all ranks are alike before the pass; that they are alike after
it is part of phase-agrees, so that holds by induction. Concrete are which ranks have a prefill, whose clocks are past
`max_delay_ms`, and the queue ratio: off, 1 or 2 (a fraction times a symbolic int is no linear term). In the module the
name `int` stands for a function that leaves symbolic ints as they are; nothing else of it is touched.
"""

import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onbeat_proofs import symbolic
from onbeat_proofs.delayer.plain import IntTable
from onbeat_proofs.delayer.results import HOLDS, UNDECIDED, VACUOUS, VIOLATED, DelayerResult, DelayerRun, ShownPass
from onbeat_proofs.delayer.rows import Row, Settings
from onbeat_proofs.delayer.sglang import decides, make
from onbeat_proofs.delayer.sglang_file import Loaded
from onbeat_proofs.symbolic.paths import Path
from onbeat_proofs.symbolic.terms import Bool, Int
from onbeat_spec.errors import NotReproduced, NotSymbolic, Undecided

STRENGTH = "for all values"
CHECKS = ("held-at-most", "no-empty-step", "phase-agrees", "bounded-delay")
RATIOS = (None, 1, 2)
UNALIKE = "phase-agrees is violated, so the ranks' states need not be alike, as this takes for granted"
MOST = 200_000
"""Paths."""


@dataclass(frozen=True, slots=True)
class PassOutcome:
    """What one path of a pass came to.

    Attributes:
        refused: whether anybody who wanted to prefill was refused.
        broken: the checks that it violates.
    """

    refused: bool
    broken: frozenset[str]


class ModelValues:
    """Stands for a `Context` with the values of a model: runs one path again, on plain ints."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def int(self, name: str, low: Any = None, high: Any = None) -> Any:
        """Return the model's value."""
        return self.values[name]

    pick = int

    def assume(self, condition: object) -> None:
        """A model is known to meet what was assumed."""


def decide(loaded: Loaded, settings: Settings) -> list[DelayerResult]:
    """Decide `CHECKS` for one number of ranks."""
    try:
        return _Pass(loaded, settings).results()
    except (NotSymbolic, Undecided) as error:
        _, line, text = symbolic.where(error)
        place = f", at line {line}: {text}" if line else ""
        return [DelayerResult(check, settings.ranks, UNDECIDED, STRENGTH, f"{error}{place}") for check in CHECKS]


class _Pass:
    """One pass of a group, from any state."""

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        self.loaded = loaded
        self.settings = settings
        self.delayer = make(loaded, settings)
        vars(loaded.module)["int"] = _whole
        for name in ("_max_delay_passes", "_curr_state", "skip_first_delayer"):
            if not hasattr(self.delayer, name):
                raise NotSymbolic(f"{loaded.name} has no attribute {name}: its states are not known")
        self.turn: ShownPass | None = None

    def results(self) -> list[DelayerResult]:
        """Explore all paths once, and judge every check by them."""
        first: dict[str, Path[PassOutcome]] = {}
        paths = refusals = 0
        for path in symbolic.explore(self.run, max_paths=MOST):
            paths += 1
            refusals += path.result.refused
            for check in path.result.broken:
                first.setdefault(check, path)
        if first:  # shown is a pass that a real group can have, if there is one
            plausible: dict[str, Path[PassOutcome]] = {}
            for path in symbolic.explore(self.run, assume=self._plausible, max_paths=MOST):
                for check in path.result.broken:
                    plausible.setdefault(check, path)
                if plausible.keys() == first.keys():
                    break
            first |= plausible
        return [
            DelayerResult(check, self.settings.ranks, UNDECIDED, STRENGTH, UNALIKE)
            if "phase-agrees" in first and check not in first
            else self._result(check, first.get(check), paths, refusals)
            for check in CHECKS
        ]

    def _result(self, check: str, path: "Path[PassOutcome] | None", paths: int, refusals: int) -> DelayerResult:
        ranks = self.settings.ranks
        if path is None:
            verdict = HOLDS if refusals else VACUOUS
            return DelayerResult(check, ranks, verdict, STRENGTH, f"on {paths:,} paths, {refusals:,} of them refusals")
        values = symbolic.smallest(path)
        answer = self.run(ModelValues(values))
        if check not in answer.broken or self.turn is None:
            raise NotReproduced(f"{check} is not violated by {values} in plain Python; please report this")
        before = "0" if values["state"] is None else str(values["state"] and values["delayed_count"])
        run = DelayerRun([before] * ranks, (self.turn,))
        shown = [f"{name} {values[name]}" for name in ("max_delay_passes", "max_running_requests", "queue_min_ratio")]
        detail = f"with {', '.join(shown)}".replace("queue_min_ratio None", "no queue rule")
        if check == "bounded-delay":
            if not self._for_ever(values):
                detail += ": refused beyond the bound, but not for ever"
                return DelayerResult(check, ranks, UNDECIDED, STRENGTH, detail, run)
            detail += ": these rows are refused whatever the count, so for ever"
        return DelayerResult(check, ranks, VIOLATED, STRENGTH, detail, run)

    def _for_ever(self, values: dict[str, Any]) -> bool:
        """Whether these rows are refused from every count, the count one higher each time: by induction, for ever."""

        def again(context: symbolic.Context) -> bool:
            count = context.int("delayed_count", 1)
            answer, counts = self._answers(ModelValues({**values, "delayed_count": count, "state": "delayed"}))
            return answer.refused and all(after is not None and bool(after == count + 1) for after in counts)

        return all(path.result for path in symbolic.explore(again, max_paths=MOST))

    def _plausible(self, context: symbolic.Context) -> Iterator[Any]:
        """Whoever has a prefill has a queue; nobody runs, or has prefilled, more requests than there are slots."""
        slots = context.int("max_running_requests", 1)
        for rank in range(self.settings.ranks):
            yield context.int(f"running {rank}", 0) <= slots
            yield context.int(f"prefill_bs {rank}", 0) <= slots
            yield context.int(f"waiting {rank}", 0) >= 1

    def run(self, context: Any) -> PassOutcome:
        """Take a pass from any state."""
        return self._answers(context)[0]

    def _answers(self, context: Any) -> tuple[PassOutcome, list[Any]]:
        ranks = range(self.settings.ranks)
        most = context.int("max_delay_passes", 1)
        slots = context.int("max_running_requests", 1)
        ratio = context.pick("queue_min_ratio", RATIOS if hasattr(self.delayer, "_queue_min_ratio") else RATIOS[:1])
        delayed = context.pick("state", (None, "delayed"))
        count = None if delayed is None else context.int("delayed_count", 1)
        skip = context.pick("skip_first_delayer", (False, True))
        wants = [context.pick(f"prefillable {rank}", (True, False)) for rank in ranks]
        timed = ratio is not None and delayed is not None
        late = [context.pick(f"late {rank}", (False, True)) if timed else False for rank in ranks]
        rows = [self._row(context, rank, wants[rank], late[rank]) for rank in ranks]
        outcomes = []
        for rank in ranks:
            self._set(most, ratio, skip)
            outcomes.append(self._one(rows, count, slots, wants[rank], late[rank]))
        return self._judged(most, count, wants, rows, outcomes), [after for _, after in outcomes]

    def _row(self, context: Any, rank: int, wants: bool, late: bool) -> list[Any]:
        """Return what a rank sends; one without a prefill sends zeros beside its clock."""
        if not wants:
            return [0, 0, 0, 0, 0, int(late)]
        counts = [context.int(f"{name} {rank}", 0) for name in ("running", "prefill_bs", "waiting")]
        return [1, context.int(f"low_usage {rank}", 0, 1), *counts, int(late)]

    def _set(self, most: Any, ratio: int | None, skip: bool) -> None:
        attributes = {"_max_delay_passes": most, "skip_first_delayer": skip}
        if hasattr(self.delayer, "_queue_min_ratio"):
            attributes |= {"_queue_min_ratio": ratio, "_queue_trigger_enabled": ratio is not None}
        vars(self.delayer).update(attributes)

    def _one(self, rows: list[list[Any]], count: Any, slots: Any, wants: bool, late: bool) -> tuple[bool, Any]:
        """Return a rank's verdict and its next count; None: no delay is under way."""
        self.delayer._gather_info = lambda **fields: IntTable(rows)
        self.loaded.clock.now = self.settings.max_delay_ms / 1000.0 if late else 0.0
        before = None if count is None else self.loaded.module._State(delayed_count=count, start_time=0.0)
        out = decides(self.delayer, before, wants, {"max_running_requests": slots} if wants else {})
        return out.output_allow, None if out.next_state is None else out.next_state.delayed_count

    def _judged(
        self,
        most: Any,
        count: Any,
        wants: Sequence[bool],
        rows: list[list[Any]],
        outcomes: list[tuple[bool, Any]],
    ) -> PassOutcome:
        refused = [after for (allow, after), wanted in zip(outcomes, wants, strict=True) if wanted and not allow]
        broken = set()
        allowed = any(allow for (allow, _), wanted in zip(outcomes, wants, strict=True) if wanted)
        if refused and not allowed and all(_is(row[2] == 0) for row in rows):
            broken.add("no-empty-step")
        before = 0 if count is None else count
        # A refusal counts one up, and there are at most max_delay_passes; an end of the delay forgets the count.
        if not all(after is not None and _is(after == before + 1) and _is(after <= most) for after in refused):
            broken |= {"held-at-most", "bounded-delay"}
        first = outcomes[0]
        for other in outcomes[1:]:
            same = first[1] is other[1] if first[1] is None or other[1] is None else _is(first[1] == other[1])
            if first[0] != other[0] or not same:
                broken.add("phase-agrees")
        if isinstance(most, builtins.int):
            self.turn = _turn(wants, rows, outcomes)
        return PassOutcome(bool(refused), frozenset(broken))


def _turn(wants: Sequence[bool], rows: list[list[Any]], outcomes: list[tuple[bool, Any]]) -> ShownPass:
    shown = tuple(
        Row(wanted, row[2], row[3], row[4], bool(row[1]), bool(row[5])) for wanted, row in zip(wants, rows, strict=True)
    )
    return ShownPass(shown, tuple(allow for allow, _ in outcomes), [str(after or 0) for _, after in outcomes])


def _is(condition: Any) -> bool:
    return bool(condition)


def _whole(value: Any = 0) -> Any:
    """Stand for `int` in SGLang's module."""
    return value if isinstance(value, Int | Bool) else builtins.int(value)
