"""How often each invariant was really put to the test.

An invariant holds trivially where its premise is never met: nobody was ever held, nobody ever evicted. So every check
counts, beside what it ran, the situations that could have broken each invariant; where there was none the verdict is
`vacuous`, never a pass.
"""

from collections import Counter

from onbeat_proofs.play import keeps_text
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.invariants.words import decodes
from onbeat_spec.policy import is_decode
from onbeat_spec.records import Facts

ABOUT_HOLDS = frozenset(
    {
        "decode-never-held",
        "resume-bypasses",
        "saturation-opens",
        "off-means-off",
        "no-decode-no-hold",
        "no-empty-step",
        "one-token-passes",
        "held-at-most",
        "beat-equals-baseline",
        "throttle-never-evicts",
        "flag-lag",
    }
)
"""Invariants that say nothing about a scheduler on which the throttle has no effect at all."""

PREMISES = {
    "decode-never-held": "a throttled step differed from the unthrottled one while a decode could run",
    "resume-bypasses": "a step held while a ready remote resume could be admitted",
    "saturation-opens": "a saturated rank was throttled with a decode running and a prefill to let in",
    "off-means-off": "an unthrottled step in a state where the throttle matters",
    "no-decode-no-hold": "a throttled step without a decode that can run, with a prefill to let in",
    "no-empty-step": "a hold left, or would have left, nothing but prefills to schedule",
    "one-token-passes": "a step held while a request with one token of local work waited",
    "flag-only-when-open": "a step held, preempted or was paused",
    "flag-means-backlog": "a step wrote the flag with work left waiting",
    "flag-lag": "a step that offered no admission left the flag as it was",
    "held-at-most": "somebody was held",
    "beat-equals-baseline": "the clock was on a beat in a state where the throttle matters",
    "order-kept": "a step admitted somebody and left others waiting",
    "throttle-never-evicts": "a step that held preempted somebody",
    "budget": "a step used up its budget",
    "slots": "all slots were taken while others waited",
    "blocks-conserved": "a rank came to rest after work",
    "all-or-nothing": "an allocation failed",
    "one-place": "requests stood in two lists or more",
    "visit-once": "two requests or more ran",
    "evicted-is-out": "somebody was preempted",
    "victim-can-pay": "somebody was preempted for another",
    "full-sequence-fits": "an admission left promises open",
    "never-fits-refused": "a request was refused for its size",
    "progress": "a step scheduled nothing though requests were live",
    "oldest-finishes": "somebody was preempted",
    "exactly-once": "outputs were delivered to a request that had been preempted, or while others were in flight",
    "load-once": "a remote load started",
    "load-bounded": "a remote load was given up at its deadline",
    "late-is-harmless": "a notice came late",
    "no-crash": "a call was made",
}
"""What is counted for each invariant; proofs have their own, `sweep.WITNESSES`. One missing here counts every check."""


def never_seen(invariant: str) -> str:
    """Say what an invariant would have needed to be put to the test, and did not get."""
    if invariant in ABOUT_HOLDS:
        return f"never seen together: an effect of the throttle, and: {PREMISES[invariant]}"
    return f"never seen: {PREMISES.get(invariant) or keeps_text.PREMISES.get(invariant, 'a step')}"


class Tally:
    """Counts, over any number of runs of one class.

    Attributes:
        met: how often each invariant's premise was met.
        steps: steps scheduled.
        pairs: states from which throttled and unthrottled steps were compared.
        effects: pairs that differed: the throttle did something.
    """

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self.steps = 0
        self.pairs = 0
        self.effects = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        self.met += other.met
        self.steps += other.steps
        self.pairs += other.pairs
        self.effects += other.effects
        return self

    def counted(self) -> dict[str, int]:
        """Return for each invariant how often it was put to the test."""
        counts = {}
        for id in CATALOGUE:
            count = self.met[id] if id in PREMISES else self.steps
            counts[id] = 0 if id in ABOUT_HOLDS and self.effects == 0 else count
        return counts

    def step(self, facts: Facts) -> None:
        """A step was scheduled."""
        self.steps += 1
        met, before, step, after = self.met, facts.before, facts.step, facts.after
        if step.evictions:
            for id in ("evicted-is-out", "all-or-nothing", "oldest-finishes"):
                met[id] += 1
            if any(victim != cause for victim, cause, _ in step.evictions):
                met["victim-can-pay"] += 1
        if step.held:
            met["held-at-most"] += 1
        if step.hold or step.evictions or not step.open:
            met["flag-only-when-open"] += 1
        if step.wrote_flag:
            met["flag-means-backlog"] += after.saturated
        elif not step.evictions and step.open:
            met["flag-lag"] += 1
        if len(before.running) > 1:
            met["visit-once"] += 1
        if (step.admitted or step.loading) and after.waiting:
            met["order-kept"] += 1
        if (step.admitted or step.loading) and after.promised:
            met["full-sequence-fits"] += 1
        met["load-once"] += len(step.loading)
        met["load-bounded"] += len(step.cancelled)
        if sum(step.scheduled.values()) == facts.config.max_num_batched_tokens:
            met["budget"] += 1
        if after.waiting and after.num_slots == facts.config.max_num_seqs:
            met["slots"] += 1
        if bool(after.waiting) + bool(after.parked) + bool(after.running) > 1:
            met["one-place"] += 1
        if not step.scheduled and before.requests and step.open:
            met["progress"] += 1

    def runs(self, throttled: Facts, unthrottled: Facts) -> bool:
        """Two steps from one state were compared; return whether the throttle mattered."""
        self.pairs += 1
        met, before, now = self.met, throttled.before, throttled.step.index
        one, other = throttled.step, unthrottled.step
        matters = bool(one.held) or one.scheduled != other.scheduled
        decode = any(True for _ in decodes(before, now))
        if matters:
            self.effects += 1
            met["off-means-off"] += 1
            met["decode-never-held"] += decode
        if one.lifted or (matters and not one.scheduled):
            met["no-empty-step"] += 1
        if one.hold:
            met["throttle-never-evicts"] += bool(one.evictions)
            for id in before.waiting:
                if id not in other.scheduled:
                    continue
                met["resume-bypasses"] += before.requests[id].external > 0
                after = unthrottled.after.requests[id]
                met["one-token-passes"] += is_decode(after.num_tokens - after.num_computed + other.scheduled[id])
        if other.prefill:
            met["saturation-opens"] += before.saturated and decode
            met["no-decode-no-hold"] += not decode
        return matters
