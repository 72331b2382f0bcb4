"""KV memory: preemption gives it back, admission promises it."""

from onbeat_spec.catalogue import Invariant, Premise, Verdict, always
from onbeat_spec.config import Config
from onbeat_spec.records import Facts, Place, State

SOMEBODY_PREEMPTED = Premise("somebody was preempted", step=lambda facts: bool(facts.step.evictions))


def for_another(facts: Facts) -> bool:
    """Whether a step preempted somebody for another request."""
    return any(victim != cause for victim, cause, _ in facts.step.evictions)


PREEMPTED_FOR_ANOTHER = Premise("somebody was preempted for another", step=for_another)

evicted_is_out = Invariant(
    "evicted-is-out",
    "A preempted request is absent from the step's output; its tokens, drafts and blocks return.",
    SOMEBODY_PREEMPTED,
    cases=("B39", "B55"),
    in_traces=SOMEBODY_PREEMPTED,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.evictions),
)


@evicted_is_out.over("step")
def victims_are_gone(facts: Facts) -> Verdict:
    """Look every victim up in the step's output and in the state after it."""
    step = facts.step
    for victim, _, _ in step.evictions:
        if victim in step.scheduled or victim in step.drafts or victim in step.admitted:
            return f"{victim} was preempted and is in the step's output"
        request = facts.after.requests[victim]
        if request.place is not Place.WAITING:
            return f"{victim} was preempted and is {request.place.value}"
        if request.num_computed != 0 or request.num_placeholders != 0 or request.num_drafts != 0:
            return f"{victim} was preempted and keeps counts of its lost KV"
        if request.num_blocks != 0 or request.reserved != 0:
            return f"{victim} was preempted and keeps {request.num_blocks} blocks, {request.reserved} promised"
    return None


victim_can_pay = Invariant(
    "victim-can-pay",
    "Nobody is preempted for another unless that releases capacity to this attempt.",
    PREEMPTED_FOR_ANOTHER,
    cases=("B114",),
    in_traces=PREEMPTED_FOR_ANOTHER,
    witness=lambda throttled, unthrottled: for_another(unthrottled),
)


@victim_can_pay.over("step")
def victims_give_blocks_back(facts: Facts) -> Verdict:
    """Whoever was preempted for another gave blocks back."""
    for victim, cause, released in facts.step.evictions:
        if victim != cause and released <= 0:
            return f"{victim} was preempted for {cause} and released nothing"
    return None


def _admitted(facts: Facts) -> bool:
    return bool(facts.step.admitted or facts.step.loading)


full_sequence_fits = Invariant(
    "full-sequence-fits",
    "Admission needs room for the whole known sequence beside what others were promised.",
    Premise("an admission left promises open", step=lambda facts: _admitted(facts) and facts.after.promised != 0),
    cases=("B46", "B60", "B113"),
    in_traces=Premise("somebody was admitted", step=_admitted),
    witness=lambda throttled, unthrottled: bool(unthrottled.step.admitted),
)


def outgrown(config: Config, state: State) -> int:
    """Most blocks by which requests can have outgrown what they were promised at admission.

    Whoever runs was admitted with blocks and promises for all it knew: at least its prompt. What it holds beyond that
    it took since. Whether it is a decode now says nothing: a load that fails makes one that has grown a chunk again.
    """
    size, grown = config.block_size, 0
    for request in map(state.requests.__getitem__, state.running):
        beyond = request.num_blocks + request.reserved - (request.num_prompt + size - 1) // size
        grown += 0 if beyond < 0 else beyond
    return grown


@full_sequence_fits.over("state")
def promises_are_covered(config: Config, state: State) -> Verdict:
    """What is promised and not free has been taken by requests that outgrew what they were promised."""
    if state.held < 0:
        return None
    grown = outgrown(config, state)
    if state.promised > state.free + grown:
        counts = f"{state.promised} blocks are promised, {state.free} free"
        return f"{counts}, and requests outgrew theirs by {grown} at most"
    return None


@full_sequence_fits.over("step")
def newcomers_have_room(facts: Facts) -> Verdict:
    """What a step admitted has blocks or a promise for all it knows, and all promises can be kept."""
    step, after, size = facts.step, facts.after, facts.config.block_size
    newcomers = [*step.admitted, *step.loading]
    if newcomers and after.promised > after.free:
        return f"after admitting {', '.join(newcomers)} {after.promised} blocks are promised and {after.free} free"
    for id in newcomers:
        request = after.requests[id]
        if (request.num_blocks + request.reserved) * size < request.num_tokens:
            return (
                f"{id} has {request.num_blocks} blocks and {request.reserved} promised for {request.num_tokens} tokens"
            )
    return None


never_fits_refused = Invariant(
    "never-fits-refused",
    "What can never fit is refused with an error and blocks nobody.",
    Premise("a request was refused for its size", refused=bool),
    cases=("B44",),
    in_traces=Premise("a request was accepted or refused", accepted=always, refused=always),
)


@never_fits_refused.over("history")
def size_decides(id: str, num_prompt: int, *, fits: bool, accepted: bool) -> Verdict:
    """A request was accepted or refused; `fits` says whether prompt and first token can ever have room."""
    if accepted and not fits:
        return f"{id} with {num_prompt} prompt tokens can never fit; it was accepted"
    if fits and not accepted:
        return f"{id} with {num_prompt} prompt tokens fits; it was refused"
    return None
