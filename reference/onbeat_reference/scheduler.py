"""One rank's scheduler: the step.

The running list is served from its best to its worst, and a victim is always the worst. So whoever is preempted has
not been served yet, and nothing that a step gave out ever has to be taken back (cases B38, B39, B55).
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence

from onbeat_reference.lifecycle import InFlight, Lifecycle
from onbeat_reference.request import Request
from onbeat_spec.cadence import count_held
from onbeat_spec.errors import ProtocolMisuse
from onbeat_spec.policy import is_decode, local_work, runnable
from onbeat_spec.records import Eviction, Place, Step

RUNNING = Place.RUNNING  # looked up once, not once per request


class Scheduler(Lifecycle):
    """A scheduler for one rank; the policy takes every decision."""

    def schedule(self, throttle_prefills: bool = False) -> Step:
        """Decide one step: who gets how many tokens.

        Every call is followed by its `update`, in order; with `async_depth` 2 one call may be ahead.

        Raises:
            ProtocolMisuse: `async_depth` steps are in flight already.
        """
        if len(self.in_flight) >= self.config.async_depth:
            raise ProtocolMisuse(
                f"{len(self.in_flight)} steps are in flight and async_depth is {self.config.async_depth}; "
                "call update() with the outputs of the oldest first"
            )
        policy = self.policy
        step = Step(self.num_steps, throttle_prefills, budget=self.config.max_num_batched_tokens)
        step.open = self.paused is None
        flight = InFlight(step)
        self._expire_loads(step)
        if self.paused != "all":
            step.hold = policy.may_hold(
                throttle=throttle_prefills,
                saturated=self.saturated,
                held_steps=self.held_steps,
                max_hold_steps=self.config.max_hold_steps,
            ) and any(policy.justifies_hold(work=local_work(r), can_run=runnable(r, step.index)) for r in self.running)
            held, owed = self._serve(flight, tuple(self.running), step.hold)
            if step.hold and policy.lifts(len(step.scheduled)):
                step.lifted = True
                step.held.clear()
                self._serve(flight, held, False, owed)
            if policy.scans(preempted=bool(step.evictions), open=step.open):
                self._scan(flight, tuple(self.waiting), step.holding)
            if self.config.num_draft_tokens:
                self._serve_drafts(flight)
            self._write_flag(step)
        self.held_steps = count_held(self.held_steps, step.holding)
        step.saturated = self.saturated
        self.num_steps += 1
        self.in_flight.append(flight)
        return step

    def _serve(
        self, flight: InFlight, requests: Sequence[Request], hold: bool, owed: Sequence[int] | None = None
    ) -> tuple[list[Request], list[int]]:
        """Give running requests their tokens, in order.

        Args:
            owed: for each request, tokens that decodes behind it are due; None: count them.

        Returns:
            Those that the hold passed over, and what was owed behind each of them then. A lifted hold serves them as
            if it had never been: by the time it is lifted, the decodes behind them are gone.
        """
        step, now = flight.step, flight.step.index
        policy, grant, give = self.policy, self.policy.grant, self._give
        cap, block_size = self.config.prefill_cap, self.config.block_size
        held: list[Request] = []
        owed_then: list[int] = []
        behind: deque[Request] | None = None  # filled at the first chunk: most steps have none
        for position, request in enumerate(requests):
            if request.place is not RUNNING or not runnable(request, now):
                continue
            work = local_work(request)
            prefill = not is_decode(work)
            budget, due = step.budget, 0
            if prefill:
                if owed is not None:
                    due = owed[position]
                else:
                    behind = self._decodes(requests[position + 1 :], now) if behind is None else behind
                    due = self._owed(behind, now)
                budget = policy.chunk_budget(budget=budget, owed=due)
            elif behind:
                behind.popleft()
            if hold and policy.holds_running(work):
                held.append(request)
                owed_then.append(due)
                step.held.append(request.id)
                continue
            tokens = grant(work=work, budget=budget, cap=cap)
            if tokens <= 0:
                continue
            end = request.num_computed + tokens
            if end > request.num_blocks * block_size and not self._make_room(step, request, end):
                continue
            give(flight, request, work, tokens, prefill)
        return held, owed_then

    def _decodes(self, requests: Iterable[Request], now: int) -> deque[Request]:
        """Return the decodes among these running requests that may run, in order: each is due one token."""
        return deque([r for r in requests if r.place is RUNNING and runnable(r, now) and is_decode(local_work(r))])

    def _owed(self, behind: deque[Request], now: int) -> int:
        """Tokens that the decodes behind a chunk are due.

        Whoever has been preempted, or sits out, since they were listed is dropped. Victims are taken from the end of
        the running list, so these stand at the end.
        """
        while behind and not (behind[-1].place is RUNNING and runnable(behind[-1], now)):
            behind.pop()
        return len(behind)

    def _make_room(self, step: Step, request: Request, num_tokens: int) -> bool:
        """Grow a running request to `num_tokens`, preempting the worst after it; False: it was itself the victim."""
        while not self.pool.grow(request, num_tokens):
            if self._evict_for(step, request) is request:
                return False
        return True

    def _evict_for(self, step: Step, request: Request) -> Request:
        """Preempt one request for another; return the victim."""
        victim = self._victim(step, request)
        released = self._preempt(victim)
        step.evictions.append(Eviction(victim.id, request.id, released))
        return victim

    def _victim(self, step: Step, request: Request) -> Request:
        """The worst running request, not better than `request`, that gives blocks back; else `request` itself.

        One that is worse than the victim, and can give nothing because all its blocks are shared, sits this step out:
        it may not profit from a better one's eviction.
        """
        for candidate in reversed(self.running):
            if candidate is request or self.pool.releasable(candidate) > 0:
                return candidate
            candidate.eligible_at = step.index + 1
            step.sat_out.append(candidate.id)
        return request

    def _give(self, flight: InFlight, request: Request, work: int, tokens: int, prefill: bool) -> None:
        """Book `tokens` for a request that has the blocks for them; `prefill`: its work is no decode's."""
        step = flight.step
        request.num_computed += tokens
        step.scheduled[request.id] = tokens
        step.budget -= tokens
        if prefill or request in flight.loads:
            step.prefill = step.prefill or prefill
            flight.prefilled.append(request)
            if tokens < work:
                return
        request.num_placeholders += 1
        flight.sampling.append(request)

    def _serve_drafts(self, flight: InFlight) -> None:
        """Give draft tokens what is left of the budget and, beside what others were promised, of the pool."""
        step, pool, block_size = flight.step, self.pool, self.config.block_size
        for request in flight.sampling:
            drafts = self.policy.grant(work=request.num_drafts, budget=step.budget, cap=request.num_drafts)
            request.num_drafts = 0
            slots = request.num_blocks * block_size - request.num_computed
            more = pool.blocks_for(request.num_computed + drafts) - request.num_blocks
            others = pool.promised - request.reserved
            if drafts > slots and not self.policy.fits_whole(needed=more, free=pool.free, promised=others):
                drafts = slots
            if drafts > 0 and pool.grow(request, request.num_computed + drafts):
                request.num_computed += drafts
                request.num_placeholders += drafts
                step.drafts[request.id] = drafts
                step.scheduled[request.id] += drafts
                step.budget -= drafts

    # --- Admission ---------------------------------------------------------------------------------------------------

    def _scan(self, flight: InFlight, requests: Sequence[Request], hold: bool) -> None:
        """Offer admission to waiting requests, in order.

        The first that lacks a slot or blocks ends the scan for all without blocks. One that lacks only tokens ends it
        for all but remote loads: a load behind it starts if slots and blocks are left, beside its own, for everybody
        who was passed over so. Who was passed over by a hold keeps nothing free.
        """
        step = flight.step
        slots = blocks = 0  # kept for those that lack only tokens
        goes_on: bool | None = None  # decided when the budget is used up
        for request in requests:
            if step.scan_over and not self._holders:
                break
            if request.eligible_at > step.index or (step.scan_over and request.num_blocks == 0):
                continue
            at_hand = request.num_computed if request.num_blocks > 0 else self.pool.match(request)
            external = request.external
            loads = request.remote_tokens > at_hand and not request.sync_load
            if request.remote_tokens > at_hand and request.sync_load:
                external = request.remote_tokens
                at_hand = min(request.remote_tokens, request.num_tokens - 1)
            work = request.num_tokens - at_hand
            if (
                hold
                and not loads
                and self.policy.holds_waiting(work=work, computed=request.num_computed, external=external)
            ):
                step.held.append(request.id)
                if not self.policy.scans_past_held():
                    break
                continue
            needed = self._needs(request, loads or external > 0)
            if not self._has_room(request, needed, slots, blocks):
                step.scan_over = True
            elif loads:
                self._start_load(step, request)
            elif step.budget > 0:
                self._admit(flight, request, at_hand, external)
            else:
                goes_on = self._offers > 0 and self.policy.scans_past_spent() if goes_on is None else goes_on
                if not goes_on:
                    step.scan_over = True
                elif request.num_blocks == 0:
                    slots, blocks = slots + 1, blocks + needed

    def _needs(self, request: Request, loads: bool) -> int:
        """Blocks that a waiting request still needs for all that it reserves; once landed, those it was promised."""
        if request.num_blocks > 0:
            return request.reserved
        return self.pool.need(request, self._reserves(request, loads))

    def _has_room(self, request: Request, needed: int, slots: int, blocks: int) -> bool:
        """Whether a waiting request has a slot and, beside all promises, blocks.

        Args:
            needed: what it `_needs`.
            slots: slots that others in front of it are kept; blocks: blocks likewise.
        """
        if request.num_blocks == 0 and self.num_slots + slots >= self.config.max_num_seqs:
            return False
        others = self.pool.promised - request.reserved + blocks
        return self.policy.fits_whole(needed=needed, free=self.pool.free, promised=others)

    def _reserves(self, request: Request, loads: bool) -> int:
        """Tokens that a request is promised blocks for, if it is let in now."""
        drafts = self.config.num_draft_tokens
        return self.policy.reserves(known=request.num_tokens, limit=request.limit, drafts=drafts, loads=loads)

    def _start_load(self, step: Step, request: Request) -> None:
        """Begin an async remote load into blocks of the request's own; it costs no tokens (B60, B64)."""
        self._dequeue(request)
        self.pool.attach(request)
        self.pool.grow(request, request.remote_tokens)
        self.pool.reserve(request, self._reserves(request, True))
        request.external, request.remote_tokens = request.remote_tokens, 0
        if self.config.remote_load_timeout:
            request.load_deadline = step.index + self.config.remote_load_timeout
        request.place = Place.PARKED
        self.parked.append(request)
        step.loading.append(request.id)

    def _admit(self, flight: InFlight, request: Request, at_hand: int, external: int) -> None:
        """Move a waiting request that fits to the running list and give it its first tokens."""
        self._dequeue(request)
        landed = request.num_blocks > 0
        if landed:
            flight.step.resumed.append(request.id)
        self.pool.attach(request)
        if external > request.external:
            flight.loads[request] = external
        request.external = external
        request.remote_tokens = 0
        request.num_computed = at_hand
        work = local_work(request)
        tokens = self.policy.grant(work=work, budget=flight.step.budget, cap=self.config.prefill_cap)
        self.pool.grow(request, at_hand + tokens)
        if not landed:  # else the promise that it loaded with stands
            self.pool.reserve(request, self._reserves(request, external > 0))
        request.place = Place.RUNNING
        insort(self.running, request, key=self._key)
        flight.step.admitted.append(request.id)
        self._give(flight, request, work, tokens, not is_decode(work))

    def _write_flag(self, step: Step) -> None:
        """Write the saturation flag, if this step may."""
        policy = self.policy
        if policy.writes_flag(hold=step.hold, preempted=bool(step.evictions), open=step.open):
            backlog = any(r.eligible_at <= step.index for r in self.waiting)
            self.saturated = policy.saturated(backlog=backlog, waiting=bool(self.waiting))
            step.wrote_flag = True
