"""How often a trace put each invariant to the test (`Invariant.in_traces`).

A trace shows partial states, and no second run from any state. An invariant whose premise never occurred is vacuous,
which is no fault of a trace, and never a pass.
"""

from collections import Counter
from typing import Any

from onbeat_proofs.play.tally import by_event
from onbeat_spec.catalogue import CATALOGUE, GROUP_CATALOGUE
from onbeat_spec.records import Facts, GroupStep
from onbeat_spec.trace import Accepted, Crashed, Notice, Record, Refused, StepRecord

UNSEEN = "it compares two runs from one state, and a trace has one"
UNSEEN_OF_GROUP = "no lock step shows it; onbeat protocol checks it"
ALONE = "it is about a group, and the trace is of ranks on their own"

_RECORDED = by_event(
    {id: entry.in_traces for id, entry in (CATALOGUE | GROUP_CATALOGUE).items() if entry.in_traces is not None}
)


class TraceTally:
    """Counts, over the records of any number of ranks."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()

    def count(self, event: str, *evidence: Any) -> None:
        """As `Tally.count`."""
        for id, counts in _RECORDED[event]:
            self.met[id] += counts(*evidence)

    def record(self, record: Record) -> None:
        """A record other than a step was read."""
        match record:
            case Accepted():
                self.count("accepted")
            case Refused():
                self.count("refused", True)
            case Notice():
                self.count("notice", record.known)
        if not isinstance(record, Crashed | StepRecord):
            self.count("call")

    def step(self, record: StepRecord, facts: Facts) -> None:
        """A step was read."""
        self.count("call")
        self.count("step", facts)
        if record.whole is not None or facts.after.held >= 0:
            self.count("whole")

    def delivered(self) -> None:
        """The outputs of a step were read, and brought a token."""
        self.count("delivered", True)

    def lock_step(self, step: GroupStep) -> None:
        """A lock step of a group is complete."""
        self.count("lock_step", step)
