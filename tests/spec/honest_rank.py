"""An engine that reports honestly, for the tests of load balancing."""

from dataclasses import dataclass, field

from onbeat_spec.balance import LoadReport, publishes


@dataclass
class Rank:
    """An engine that is honest: it reads what is sent to it in order, and reports what it holds."""

    epoch: int = 0
    inbox: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    sum_read: tuple[int, int] = 0, 0
    written: list[tuple[LoadReport, int]] = field(default_factory=list)
    """Its reports, and how many preempted requests waited then."""

    def read(self) -> None:
        if self.inbox:
            self.waiting.append(self.inbox.pop(0))
            self.sum_read = self.sum_read[0] + 1, self.sum_read[1] + self.waiting[-1]

    def admit(self) -> None:
        source = self.preempted or self.waiting
        if source:
            self.running.append(source.pop(0))

    def preempt(self) -> None:
        if self.running:
            self.preempted.append(self.running.pop())

    def end(self) -> None:
        for held in (self.running, self.waiting, self.preempted):
            if held:
                held.pop(0)
                return

    def publish(self) -> LoadReport:
        """Write a report, if anything has changed; return the newest."""
        held = [*self.waiting, *self.preempted, *self.running]
        waiting = len(self.waiting) + len(self.preempted)
        last = self.written[-1][0] if self.written else LoadReport(self.epoch)
        now = LoadReport(self.epoch, last.number + 1, waiting, len(self.running), sum(held), *self.sum_read)
        if publishes(last, now):
            self.written.append((now, len(self.preempted)))
        return self.written[-1][0] if self.written else last
