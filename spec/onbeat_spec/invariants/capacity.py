"""What a rank has: tokens per step, slots, KV blocks."""

from onbeat_spec.catalogue import Invariant, Premise, Verdict, always
from onbeat_spec.config import Config
from onbeat_spec.records import Facts, State

budget = Invariant(
    "budget",
    "A step's tokens, draft tokens counted, stay within max_num_batched_tokens.",
    Premise(
        "a step used up its budget",
        step=lambda facts: sum(facts.step.scheduled.values()) == facts.config.max_num_batched_tokens,
    ),
    cases=("B19",),
    in_traces=Premise("a step had tokens", step=lambda facts: bool(facts.step.scheduled)),
    witness=lambda throttled, unthrottled: len(throttled.step.scheduled) > 1,
)


@budget.over("step")
def tokens_stay_within(facts: Facts) -> Verdict:
    """Add up the step's tokens."""
    step = facts.step
    total = sum(step.scheduled.values())
    if total > facts.config.max_num_batched_tokens:
        return f"{total} tokens scheduled; max_num_batched_tokens is {facts.config.max_num_batched_tokens}"
    for id, drafts in step.drafts.items():
        if id not in step.scheduled or drafts >= step.scheduled[id]:
            return f"{id} has {drafts} drafts in {step.scheduled.get(id, 0)} scheduled tokens"
    return None


ALL_TAKEN = Premise(
    "all slots were taken while others waited",
    step=lambda facts: bool(facts.after.waiting) and facts.after.num_slots == facts.config.max_num_seqs,
)

slots = Invariant(
    "slots",
    "Running requests, and with them all that hold a slot, stay within max_num_seqs.",
    ALL_TAKEN,
    cases=("B34", "B69"),
    in_traces=ALL_TAKEN,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.admitted),
)


@slots.over("state")
def holders_stay_within(config: Config, state: State) -> Verdict:
    """Count who holds a slot."""
    if state.num_slots > config.max_num_seqs:
        return (
            f"{state.num_slots} requests hold a slot ({state.num_running} run); max_num_seqs is {config.max_num_seqs}"
        )
    return None


WHOLE_STATE = Premise("a whole state was recorded", whole=always)

blocks_conserved = Invariant(
    "blocks-conserved",
    "Free and held blocks add up to the pool; no block is held twice unless shared by prefix; at rest none is held.",
    Premise("a rank came to rest after work", rest=always),
    cases=("B59", "B65"),
    in_traces=WHOLE_STATE,
    witness=lambda throttled, unthrottled: bool(unthrottled.step.evictions and unthrottled.step.scheduled),
)


@blocks_conserved.over("state")
def blocks_add_up(config: Config, state: State) -> Verdict:
    """Add up the blocks."""
    if state.held >= 0 and state.free + state.held != config.num_blocks:
        return f"{state.free} free and {state.held} held blocks do not make {config.num_blocks}"
    if state.held == 0 and state.promised != 0:
        return f"{state.promised} blocks are promised though nobody holds any"
    return None


def _somebody_preempted(facts: Facts) -> bool:
    return bool(facts.step.evictions)


all_or_nothing = Invariant(
    "all-or-nothing",
    "A failed allocation changes nothing: who gets no tokens gets no blocks.",
    Premise("an allocation failed", step=_somebody_preempted),
    cases=("B123",),
    in_traces=Premise("somebody was preempted", step=_somebody_preempted),
    witness=lambda throttled, unthrottled: any(victim == cause for victim, cause, _ in unthrottled.step.evictions),
)


@all_or_nothing.over("step")
def no_tokens_no_blocks(facts: Facts) -> Verdict:
    """Who got no tokens in the step, and was not preempted, holds the blocks it held."""
    step = facts.step
    served = {*step.loading, *(eviction.victim for eviction in step.evictions)}
    for id in facts.before.running:
        if id in step.scheduled or id in served or id not in facts.after.requests:
            continue
        held, holds = facts.before.requests[id].num_blocks, facts.after.requests[id].num_blocks
        if held != holds:
            return f"{id} got no tokens and went from {held} to {holds} blocks"
    return None
