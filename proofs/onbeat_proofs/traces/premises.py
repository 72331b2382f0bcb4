"""How often a trace put each invariant to the test.

As `premises`, with what a trace shows: partial states, and no second run from any state. An invariant whose premise
never occurred is vacuous, which is no fault of a trace, and never a pass.
"""

from onbeat_proofs.play.premises import Tally
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.records import Facts
from onbeat_spec.trace import Accepted, Crashed, Notice, Record, Refused, StepRecord, Update

PREMISES = {
    "decode-never-held": "somebody was held",
    "resume-bypasses": "somebody was held",
    "one-token-passes": "somebody was held",
    "no-decode-no-hold": "somebody was held in a step with whole states around it",
    "no-empty-step": "somebody was held",
    "off-means-off": "somebody was held",
    "flag-only-when-open": "a step held, preempted or was paused",
    "flag-means-backlog": "a step wrote the flag with work left waiting",
    "flag-lag": "a step that offered no admission left the flag as it was",
    "held-at-most": "somebody was held",
    "order-kept": "a step admitted somebody and left others waiting",
    "budget": "a step had tokens",
    "slots": "all slots were taken while others waited",
    "blocks-conserved": "a whole state was recorded",
    "all-or-nothing": "somebody was preempted",
    "one-place": "a whole state was recorded",
    "visit-once": "two requests or more ran",
    "evicted-is-out": "somebody was preempted",
    "victim-can-pay": "somebody was preempted for another",
    "full-sequence-fits": "somebody was admitted",
    "never-fits-refused": "a request was accepted or refused",
    "progress": "a step scheduled nothing though requests were live",
    "oldest-finishes": "somebody was preempted for another",
    "exactly-once": "outputs were delivered",
    "load-once": "a remote load started",
    "load-bounded": "a step with a deadline for loads while one was in flight",
    "late-is-harmless": "a notice came late",
    "no-crash": "a call was made",
}
"""What is counted. Invariants that are not here compare two runs from one state; a trace has only one."""

UNSEEN = "it compares two runs from one state, and a trace has one"


class TraceTally:
    """Counts, over the records of any number of ranks."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.met = self.tally.met

    def counted(self) -> dict[str, int]:
        """Return for each invariant of one rank how often it was put to the test."""
        return {id: self.met[id] if id in PREMISES else 0 for id in CATALOGUE}

    def record(self, record: Record) -> None:
        """A record other than a step was read."""
        match record:
            case Accepted() | Refused():
                self.met["never-fits-refused"] += 1
            case Update():
                self.met["exactly-once"] += 1
            case Notice(known=False):
                self.met["late-is-harmless"] += 1
        if not isinstance(record, Crashed | StepRecord):
            self.met["no-crash"] += 1

    def step(self, record: StepRecord, facts: Facts) -> None:
        """A step was read."""
        step, met, tally = record.step, self.met, self.tally
        own = met.copy()
        tally.step(facts)
        for id in ("visit-once", "full-sequence-fits", "oldest-finishes", "load-bounded", "budget", "one-place"):
            met[id] = own[id]  # counted otherwise here
        met["no-crash"] += 1
        met["budget"] += bool(step.scheduled)
        met["visit-once"] += facts.before.num_running > 1
        met["full-sequence-fits"] += bool(step.admitted or step.loading)
        met["oldest-finishes"] += any(victim != cause for victim, cause, _ in step.evictions)
        met["load-bounded"] += bool(facts.config.remote_load_timeout and facts.before.num_loading)
        if step.held:
            for id in ("decode-never-held", "resume-bypasses", "one-token-passes", "no-empty-step", "off-means-off"):
                met[id] += 1
            met["no-decode-no-hold"] += facts.before.held >= 0
        whole = record.whole is not None or facts.after.held >= 0
        for id in ("blocks-conserved", "one-place"):
            met[id] += whole
