"""A request's life: it goes on, its tokens are delivered once, its loads end, and late notices do no harm."""

from collections.abc import Sequence

from onbeat_spec.catalogue import History, Invariant, Premise, Verdict, always
from onbeat_spec.config import Config
from onbeat_spec.invariants.memory import PREEMPTED_FOR_ANOTHER, SOMEBODY_PREEMPTED, for_another
from onbeat_spec.invariants.words import better
from onbeat_spec.policy import runnable
from onbeat_spec.records import Facts, Place, State

# --- Going on --------------------------------------------------------------------------------------------------------

IDLE_STEPS = 2
"""Steps in a row that may do nothing while work is there: one that evicts, one that the evicted then waits out."""
EMPTY_STEP = Premise(
    "a step scheduled nothing though requests were live",
    step=lambda facts: not facts.step.scheduled and bool(facts.before.requests) and facts.step.open,
)

progress = Invariant(
    "progress",
    "Not paused and with runnable work, at most two steps in a row schedule nothing, load nothing and end nothing.",
    EMPTY_STEP,
    cases=("B53", "B62", "B63", "B64"),
    in_traces=EMPTY_STEP,
)


@progress.over("history")
class IdleInARow(History):
    """Count the steps in a row that did nothing with work that nothing else kept waiting."""

    __slots__ = ("idle",)

    def __init__(self) -> None:
        self.idle = 0

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        step, before = facts.step, facts.before
        if step.scheduled or step.loading or not step.open or facts.config.max_num_batched_tokens == 0:
            self.idle = 0
            return ()
        listed = [before.requests[id] for id in (*before.running, *before.waiting)]
        owners = [request for request in listed if request.num_blocks > 0]
        others_due = before.num_loading > 0 or not all(runnable(request, step.index) for request in owners)
        could = any(runnable(request, step.index) for request in listed)
        self.idle = 0 if others_due or not could else self.idle + 1
        return (f"{self.idle} steps in a row did nothing though work is there",) if self.idle > IDLE_STEPS else ()

    def finished(self, id: str) -> None:
        self.idle = 0

    def released(self, id: str) -> None:
        self.idle = 0

    def notice(self) -> None:
        self.idle = 0

    def took_part(self) -> None:
        self.idle = 0

    def memory(self, now: int, config: Config) -> int:
        return self.idle


oldest_finishes = Invariant(
    "oldest-finishes",
    "Every preemption is caused by a better or older request or by the victim itself, and nobody preempts itself who "
    "holds the only blocks.",
    SOMEBODY_PREEMPTED,
    cases=("B117", "B119"),
    in_traces=PREEMPTED_FOR_ANOTHER,
    witness=lambda throttled, unthrottled: for_another(unthrottled),
)


@oldest_finishes.over("step")
def victims_are_younger(facts: Facts) -> Verdict:
    """Compare every victim with the request it was preempted for."""
    before = facts.before
    for victim, cause, _ in facts.step.evictions:
        if victim != cause and better(facts.config, before.requests[victim], before.requests[cause]):
            return f"{victim} was preempted for the younger {cause}"
        others = [r for id, r in before.requests.items() if id != victim and r.num_blocks > 0]
        if victim == cause and before.held >= 0 and not others:
            return f"{victim}, the only request with blocks, was preempted"
    return None


# --- Tokens ----------------------------------------------------------------------------------------------------------

exactly_once = Invariant(
    "exactly-once",
    "Every sampled token is delivered once and in order, also across preemption, abort and steps in flight.",
    Premise(
        "outputs were delivered to a request that had been preempted, or while others were in flight", delivered=bool
    ),
    cases=("B40", "B43", "B59"),
    in_traces=Premise("outputs were delivered", delivered=always),
    witness=lambda throttled, unthrottled: bool(unthrottled.step.scheduled),
    by_proof=False,
)


@exactly_once.over("state")
def placeholders_balance(config: Config, state: State) -> Verdict:
    """No token is awaited twice, or awaited from nobody."""
    for id, request in state.requests.items():
        if request.num_placeholders < 0 or (state.in_flight == 0 and request.num_placeholders != 0):
            return f"{id} awaits {request.num_placeholders} tokens with {state.in_flight} steps in flight"
        if request.num_computed > request.num_tokens + request.num_placeholders:
            return f"{id} has {request.num_computed} tokens computed of {request.num_tokens} known"
    return None


@exactly_once.over("history")
def delivered_as_sampled(id: str, tokens: Sequence[int], expected: Sequence[int]) -> Verdict:
    """A step's outputs for one request were delivered; `expected` is what was sampled at these positions."""
    if list(tokens) != list(expected):
        return f"{id} was delivered {list(tokens)}; sampled was {list(expected)}"
    return None


# --- Loads -----------------------------------------------------------------------------------------------------------

LOAD_STARTED = Premise("a remote load started", step=lambda facts: len(facts.step.loading))

load_once = Invariant(
    "load-once",
    "A remote load starts at most once per allocation.",
    LOAD_STARTED,
    cases=("B64",),
    in_traces=LOAD_STARTED,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.loading),
    by_proof=False,
)


@load_once.over("step")
def load_takes_the_offer(facts: Facts) -> Verdict:
    """A load uses up the store's offer."""
    for id in facts.step.loading:
        if facts.before.requests[id].remote_tokens <= 0 or facts.after.requests[id].remote_tokens != 0:
            return f"{id} loads though nothing is offered, or may load again"
    return None


class _Loads(History):
    """For each request that loads or has loaded in its present allocation: since when, and its arrival."""

    __slots__ = ("loading",)

    def __init__(self) -> None:
        self.loading: dict[str, tuple[int, int]] = {}

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        step = facts.step
        for eviction in step.evictions:
            self.loading.pop(eviction.victim, None)
        for id in step.loading:
            self.loading[id] = step.index, facts.after.requests[id].arrival
        return ()

    def finished(self, id: str) -> None:
        self.loading.pop(id, None)

    def released(self, id: str) -> None:
        self.loading.pop(id, None)


@load_once.over("history")
class LoadsAgain(_Loads):
    """Remember who loaded; nobody does twice in one allocation."""

    __slots__ = ()

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        again = list[str]()
        for eviction in facts.step.evictions:
            self.loading.pop(eviction.victim, None)
        for id in facts.step.loading:
            arrival = facts.after.requests[id].arrival
            if id in self.loading and self.loading[id][1] == arrival:
                again.append(f"{id} loads again within one allocation")
            self.loading[id] = facts.step.index, arrival
        return again

    def memory(self, now: int, config: Config) -> dict[str, int]:
        return dict.fromkeys(self.loading, 0)


load_bounded = Invariant(
    "load-bounded",
    "A remote load ends by its deadline at the latest, and a failure counts as its end.",
    Premise("a remote load was given up at its deadline", step=lambda facts: len(facts.step.cancelled)),
    cases=("B63", "B71"),
    in_traces=Premise(
        "a step with a deadline for loads while one was in flight",
        step=lambda facts: bool(facts.config.remote_load_timeout and facts.before.num_loading),
    ),
    by_proof=False,
)


@load_bounded.over("history")
class LoadsTooLong(_Loads):
    """Remember since when a request loads; nobody does beyond the deadline."""

    __slots__ = ()

    def step(self, facts: Facts, interval: int) -> Sequence[str]:
        super().step(facts, interval)
        limit, now = facts.config.remote_load_timeout, facts.step.index
        if not limit:
            return ()
        return [
            f"{id} has been loading for {now - since} steps of {limit}"
            for id, (since, _) in self.loading.items()
            if now - since >= limit
            and (request := facts.after.requests.get(id)) is not None
            and request.place is Place.PARKED
        ]

    def memory(self, now: int, config: Config) -> dict[str, int]:
        limit = config.remote_load_timeout
        return {id: now - since if limit else 0 for id, (since, _) in self.loading.items()}


# --- Notices and calls -----------------------------------------------------------------------------------------------


def _unknown(known: bool) -> bool:
    return not known


LATE = Premise("a notice came late", notice=_unknown)

late_is_harmless = Invariant(
    "late-is-harmless",
    "A notice for an unknown or ended request, or a second one, changes nothing.",
    LATE,
    cases=("B52", "B59", "B65"),
    in_traces=LATE,
    by_proof=False,
)


@late_is_harmless.over("history")
def late_changes_nothing(before: State, after: State, *, known: bool) -> Verdict:
    """A notice (load landed or failed, abort) was handled; it may change something only if its object was known."""
    return "a late notice changed the state" if not known and before != after else None


CALLED = Premise("a call was made", call=always)

no_crash = Invariant(
    "no-crash",
    "No call with valid arguments raises.",
    CALLED,
    cases=("B40", "B59", "B65"),
    in_traces=CALLED,
    by_proof=False,
)


@no_crash.over("history")
def call_returned(error: str | None) -> Verdict:
    """A call returned, or raised what it does not declare."""
    return error
