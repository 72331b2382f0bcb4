"""SGLang's PrefillDelayer as a decision of a group: the real class, one object for each rank.

A pass goes as in SGLang's scheduler: a rank whose prefill fits asks `negotiate_should_allow_prefill` of a
`PrefillDelayerSinglePassExecutor`; one that has none calls only `finalize`, and so reports an empty row, its running
decodes left out. The exchange between the ranks is ours: `_gather_info` first tells what a rank would send, then
returns what all sent. The clock is injected; of the time since a delay began only "past `max_delay_ms`" is kept.
"""

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

from onbeat_proofs.delayer.decision import Misstep, PassResult, State, guarded
from onbeat_proofs.delayer.plain import IntTable
from onbeat_proofs.delayer.rows import Row, Settings, alphabet
from onbeat_proofs.delayer.sglang_file import Loaded, arguments, parallel
from onbeat_proofs.foreign.targets import where_raised
from onbeat_spec.errors import NotADelayer

FIELDS = (
    "local_prefillable",
    "local_token_watermark_force_allow",
    "running_batch",
    "max_prefill_bs",
    "waiting_queue_len",
    "queue_timeout_expired",
)
"""The ints of a row, in their order; older versions send the first four or five."""

UNUSED = {"_global_info_buffer", "_gather_group", "_gather_device", "_cpu_group", "_metrics_collector", "_gather_info"}
"""Attributes that are no state: where rows are exchanged, and where metrics go."""


class _Sent(BaseException):
    """A rank's row is known: the first half of a pass ends."""


class SGLang:
    """The group's decision.

    Raises:
        NotADelayer: the class of this version cannot be made or called.
    """

    prefill_excludes_decode = True  # its scheduler runs a prefill batch, or else the decode batch

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        self.loaded = loaded
        self.settings = settings
        self.name = loaded.name
        self._rows: list[list[int]] | None = None
        self._sent: list[int] = []
        self._messages: dict[tuple[Hashable, Row], list[int]] = {}
        """What a rank in a state sends: it has only these two to go by."""
        self._ranks = [make(loaded, settings) for _ in range(settings.ranks)]
        for delayer in self._ranks:
            delayer._gather_info = self._gather
        self._single_pass = loaded.module.PrefillDelayerSinglePassExecutor
        self._takes = _names(_pure(type(self._ranks[0])))
        self._finalize = _names(self._single_pass.finalize)
        self._names = vars(self._ranks[0]).keys() - UNUSED
        self._kept = sorted(self._names)
        self._initial = tuple(self._read(delayer) for delayer in self._ranks)

    def initial(self) -> State:
        """Return what the objects hold once made."""
        return self._initial

    def rows(self) -> Sequence[Row]:
        """Return the whole alphabet."""
        return alphabet(self.settings)

    def step(self, state: State, rows: Sequence[Row]) -> PassResult:
        """Let every rank send its row, then let every rank decide."""
        sent = []
        for delayer, own, row in zip(self._ranks, state, rows, strict=True):
            message = self._messages.get((own, row))
            if message is None:
                self._write(delayer, own)
                self._rows = None
                message = self._messages[own, row] = guarded(self._send, delayer, row)
            sent.append(message)
        self._rows = sent
        allow, following = [], []
        for delayer, own, row in zip(self._ranks, state, rows, strict=True):
            self._write(delayer, own)
            allow.append(bool(guarded(self._pass, delayer, row)))
            following.append(self._read(delayer))
        return PassResult(tuple(allow), tuple(following))

    def show(self, state: State) -> list[str]:
        """Return the passes delayed, `!` once they are past `max_delay_ms`, and what else is not as at the start."""
        return [self._show(own, first) for own, first in zip(state, self._initial, strict=True)]

    # --- One rank ------------------------------------------------------------------------------------------------

    def _pass(self, delayer: Any, row: Row) -> bool:
        """Do what SGLang's scheduler does with the delayer in one pass; return the verdict."""
        watermark = self.settings.token_usage_low_watermark or 0.0
        usage = 0.0 if row.low_usage else watermark
        self.loaded.clock.now = self._seconds if row.late else 0.0
        single = self._single_pass(delayer, usage)
        if row.prefillable:
            values = {
                "running_batch": row.running,
                "max_prefill_bs": row.prefill_bs,
                "max_running_requests": self.settings.max_running_requests,
                "waiting_queue_len": row.waiting,
            }
            single.negotiate_should_allow_prefill(local_prefillable=True, **self._taken(values))
        ran = row.prefillable and single._called and single._result.output_allow
        outcome = {"actual_prefill": ran, "actual_prefill_bs": row.prefill_bs if ran else 0}
        single.finalize(**{name: value for name, value in outcome.items() if name in self._finalize})
        return bool(single._result.output_allow)

    def _send(self, delayer: Any, row: Row) -> list[int]:
        """Return what a rank would tell the others."""
        try:
            self._pass(delayer, row)
        except _Sent:
            return self._sent
        raise Misstep("the delayer decided without asking the other ranks")

    def _taken(self, values: dict[str, int]) -> dict[str, int]:
        if "kwargs" in self._takes:  # 0.5.10 hands all names on, and its caller gives three
            return {name: value for name, value in values.items() if name != "waiting_queue_len"}
        return {name: value for name, value in values.items() if name in self._takes}

    def _gather(self, **fields: Any) -> Any:
        """Stand for the exchange between the ranks."""
        if self._rows is None:
            self._sent = [int(fields.get(name, 0)) for name in FIELDS]
            raise _Sent
        return table(self.loaded, self._rows)

    # --- State ---------------------------------------------------------------------------------------------------

    @property
    def _seconds(self) -> float:
        return self.settings.max_delay_ms / 1000.0

    def _read(self, delayer: Any) -> Hashable:
        """Return all that a delayer remembers, times reduced to whether `max_delay_ms` has gone by."""
        held = vars(delayer)
        if held.keys() - UNUSED != self._names:
            raise Misstep(f"the delayer's attributes have changed: {sorted(held.keys() ^ self._names - UNUSED)}")
        return tuple([self._frozen(name, held[name]) for name in self._kept])

    def _frozen(self, name: str, value: Any) -> Hashable:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if is_dataclass(value) and not isinstance(value, type):
            past = self.loaded.clock.now - value.start_time >= self._seconds  # type: ignore[attr-defined]  # SGLang's
            return replace(value, start_time=-self._seconds if past else 0.0)  # type: ignore[return-value]  # frozen
        raise NotADelayer(f"PrefillDelayer.{name} is a {type(value).__name__}, which this audit cannot keep as state")

    def _write(self, delayer: Any, own: Hashable) -> None:
        vars(delayer).update(zip(self._kept, own, strict=True))  # type: ignore[call-overload]  # what `_read` made

    def _show(self, own: Hashable, first: Hashable) -> str:
        now, then = (dict(zip(self._kept, values, strict=True)) for values in (own, first))  # type: ignore[call-overload]
        kept = now.pop("_curr_state", None)
        text = "0" if kept is None else f"{kept.delayed_count}{'!' if kept.start_time < 0 else ''}"
        changed = [f"{name.removeprefix('_')}={value}" for name, value in now.items() if value != then.get(name)]
        return " ".join([text, *changed])


def table(loaded: Loaded, rows: Sequence[Sequence[Any]]) -> Any:
    """Return gathered rows as what the file computes with."""
    if loaded.tensors == "torch":
        return loaded.module.torch.tensor(rows, dtype=loaded.module.torch.int64)
    return IntTable(rows)


def make(loaded: Loaded, settings: Settings, **overrides: Any) -> Any:
    """Make one rank's PrefillDelayer of any version.

    Raises:
        NotADelayer: its constructor wants something that this audit does not know, or refuses.
    """
    layout = parallel(settings)
    values = {
        "max_delay_passes": settings.max_delay_passes,
        "token_usage_low_watermark": settings.token_usage_low_watermark,
        "dp_size": settings.ranks,
        "attn_tp_size": 1,
        "cpu_group": layout.tp_group.cpu_group,
        "device_group": layout.tp_group.device_group,
        "server_args": arguments(settings),
        **overrides,
    }
    cls = loaded.module.PrefillDelayer
    parameters = inspect.signature(cls).parameters
    lacking = [name for name, p in parameters.items() if p.default is p.empty and name not in values]
    if lacking:
        raise NotADelayer(f"{loaded.name} of {loaded.file} wants {', '.join(lacking)}: this version is not supported")
    try:
        return cls(**{name: value for name, value in values.items() if name in parameters})
    except Exception as error:
        raise NotADelayer(f"{loaded.name} of {loaded.file} cannot be made: {where_raised(error)}") from error


def decides(delayer: Any, state: Any, prefillable: bool, gathered: dict[str, Any]) -> Any:
    """Call the decision itself, a function of the state and of what is gathered.

    Raises:
        NotADelayer: this version has no such method.
    """
    return _pure(type(delayer))(delayer, state, local_prefillable=prefillable, token_usage=0.0, **gathered)


def _pure(cls: type) -> Callable[..., Any]:
    method = getattr(cls, "_negotiate_should_allow_prefill_pure", None)
    if method is None:
        raise NotADelayer(f"{cls.__name__} has no _negotiate_should_allow_prefill_pure: this version is not supported")
    return method  # type: ignore[no-any-return]  # a method of a class that we do not know


def _names(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)
