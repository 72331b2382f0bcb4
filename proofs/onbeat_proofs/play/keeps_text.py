"""Whether a scheduler keeps a policy text: the first question about a class that decides by itself.

The reference is given its policy and cannot stray from it. A scheduler of another family has the policy written into
its loop; here what it did, throttled and not, from one state, is held against the text that its version should have.
That is not the question whether the text is any good: that is what the invariants ask.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from onbeat_spec.catalogue import ByText
from onbeat_spec.invariants.holds import hit_by_held, same
from onbeat_spec.policy import Policy, local_work, runnable
from onbeat_spec.records import Facts, View


class Rule(NamedTuple):
    """What a scheduler that decides by itself must keep of the text, and the situation that puts it to the test."""

    statement: str
    premise: str


RULES = {
    "text-holds": Rule(
        "A throttled step holds when the policy text of its version does, and exactly whom the text holds.",
        "a throttled step in a state where the text holds somebody",
    ),
    "text-scan": Rule(
        "Behind a held request the scan of the waiting list ends, or goes on, as the text says.",
        "somebody waited behind a request that the text holds",
    ),
    "text-flag": Rule(
        "The saturation flag is written in the steps in which the text writes it, and with the text's value.",
        "a throttled step in which the text writes no flag, or a step after which the flag is up",
    ),
}
_NO_BOUND = 1 << 30


class Comparison:
    """Two steps from one state, held against a policy text.

    Args:
        policy: the text.
        throttled: the step with the throttle.
        unthrottled: the step without it.
        chunks: running requests that the family counts as prefills; all others it counts as decodes, whatever their
            local work. vLLM takes a prompt with one token left for a prefill, and a decode whose loaded blocks turned
            out to be invalid for a decode. None: the text goes by local work.
        aside: waiting requests that the family's flag does not count, after either step: they came from a list of
            requests that could not run.
    """

    def __init__(
        self,
        policy: Policy,
        throttled: Facts,
        unthrottled: Facts,
        chunks: Collection[str] | None,
        aside: tuple[Collection[str], Collection[str]] = ((), ()),
    ) -> None:
        self.policy = policy
        self.throttled = throttled
        self.unthrottled = unthrottled
        self.chunks = chunks
        self.aside = aside
        state, now = throttled.before, throttled.step.index
        running = [state.requests[id] for id in state.running]
        self.hold = policy.may_hold(
            throttle=True, saturated=state.saturated, held_steps=0, max_hold_steps=_NO_BOUND
        ) and any(policy.justifies_hold(work=self.work(request), can_run=runnable(request, now)) for request in running)
        """The text holds in a throttled step from this state."""
        self.held = self._held(unthrottled) if self.hold else set[str]()
        """Of those whom the unthrottled step served, those whom the text holds."""

    def work(self, request: View) -> int:
        """Local work of a running request, as the family counts it."""
        work = local_work(request)
        if self.chunks is None:
            return work
        return max(work, 2) if request.id in self.chunks else min(work, 1)

    def strays(self) -> Iterator[tuple[str, str]]:
        """Yield id and message of whatever the two steps did against the text."""
        throttled, unthrottled = self.throttled, self.unthrottled
        different = same(throttled, unthrottled)
        # A hold that would have left the step empty is lifted within the step, if the text says so.
        others = throttled.step.scheduled.keys() - self.held - self._held(throttled)
        lifted = self.policy.lifts(0) and not others
        if not self.hold:
            if different is not None:
                yield "text-holds", f"the text does not hold here, and the throttled step differs: {different}"
        elif not lifted:
            yield from (("text-holds", message) for message in self._whom())
            yield from (("text-scan", message) for message in self._scan())
        if throttled.before.in_flight == 0:
            for facts, held, aside in zip((throttled, unthrottled), (self.hold, False), self.aside, strict=True):
                yield from (("text-flag", message) for message in self._flag(facts, held, aside))

    def met(self) -> Iterator[str]:
        """Yield the rules that the two steps put to the test."""
        if self.held:
            yield "text-holds"
            waiting = self.throttled.before.waiting
            first = next((place for place, id in enumerate(waiting) if id in self.held), len(waiting))
            if waiting[first + 1 :]:
                yield "text-scan"
        if self.throttled.before.in_flight == 0 and (self.hold or self.unthrottled.after.saturated):
            yield "text-flag"

    def by_text(self) -> ByText:
        """Return what premises of invariants read of the two steps."""
        all_held = bool(self.held) and not self.unthrottled.step.scheduled.keys() - self.held
        return ByText(self.throttled, self.hold, all_held)

    def _held(self, facts: Facts) -> set[str]:
        """Return, of those whom a step served, those whom the text holds."""
        before, step, after, policy = facts.before, facts.step, facts.after, self.policy
        served = [before.requests[id] for id in before.running if id in step.scheduled]
        held = {request.id for request in served if policy.holds_running(self.work(request))}
        for id in step.admitted:
            now = after.requests[id]
            work = now.num_tokens - now.num_computed + step.scheduled.get(id, 0)
            if policy.holds_waiting(work=work, computed=before.requests[id].num_computed, external=now.external):
                held.add(id)
        return held

    def _whom(self) -> Iterator[str]:
        throttled, unthrottled, before = self.throttled.step, self.unthrottled.step, self.throttled.before
        for id in sorted(self._held(self.throttled) & throttled.scheduled.keys()):
            yield f"{id} got {throttled.scheduled[id]} tokens in a step in which the text holds it"
        if unthrottled.evictions or throttled.evictions:
            return
        order = [*before.running, *before.waiting]
        stop = len(order)
        if not self.policy.scans_past_held():
            stop = next((at for at, id in enumerate(order) if id in self.held and id in before.waiting), stop)
        for id in throttled.held:
            if id not in self.held and id in order[:stop] and not hit_by_held(self.throttled, self.unthrottled, id):
                yield f"{id} was held in a step in which the text does not hold it"

    def _scan(self) -> Iterator[str]:
        if self.policy.scans_past_held():
            return
        waiting, step = self.throttled.before.waiting, self.throttled.step
        first = next((at for at, id in enumerate(waiting) if id in self.held), len(waiting))
        for id in waiting[first + 1 :]:
            if id in step.admitted or id in step.loading:
                yield f"{id} was let in from behind {waiting[first]}, at which the text ends the scan"

    def _flag(self, facts: Facts, hold: bool, aside: Collection[str]) -> Iterator[str]:
        step, after = facts.step, facts.after
        if not self.policy.writes_flag(hold=hold, preempted=bool(step.evictions), open=step.open):
            if step.wrote_flag:
                yield f"the flag was written ({bool(step.saturated)}) in a step in which the text does not write it"
            return
        if not step.wrote_flag:
            if step.open:  # paused altogether, nothing is written
                yield "the flag was not written in a step in which the text writes it"
            return
        left = [request for id in after.waiting if (request := after.requests[id]).eligible_at <= step.index]
        value = self.policy.saturated(backlog=bool(left), waiting=any(request.id not in aside for request in left))
        if bool(step.saturated) != value:
            yield f"the flag became {bool(step.saturated)}; by the text it becomes {value}"
