"""Mutants that change nothing, with the reason; `equality` proves each on small states, for all values.

Keyed by the mutant's id, which stays the same when lines move. An entry that fits no mutant any more is an error.
"""

# The ids are the text of the changes, and longer than a line.
# ruff: noqa: E501

EQUIVALENT: dict[str, str] = {
    "policy.py:Policy.grant:boundary: if work > budget -> if work >= budget": "where both are equal the assignment changes nothing",
    "policy.py:Policy.grant:boundary: if work > cap -> if work >= cap": "where both are equal the assignment changes nothing",
    "policy.py:Policy.chunk_budget:boundary: if owed >= budget -> if owed > budget": "where both are equal the difference is the same 0",
    "cadence.py:next_hold:constant: if left > 0 -> if left > 1": "from 1 the count goes to 0 on either way",
    "cadence.py:LocalClock.throttle:drop: return self.interval > 1 and self.left > 0 -> return self.left > 0": "left stays below interval, so with interval 1 it is 0",
    "cadence.py:LocalClock.throttle:boundary: return self.interval > 1 and self.left > 0 -> return self.interval >= 1 and self.left > 0": "left stays below interval, so with interval 1 it is 0",
    "cadence.py:LocalClock.throttle:constant: return self.interval > 1 and self.left > 0 -> return self.interval > 0 and self.left > 0": "left stays below interval, so with interval 1 it is 0",
    "scheduler.py:Scheduler._serve:constant: budget, due = (step.budget, 0) -> budget, due = (step.budget, 1)": "what is owed behind a decode is never asked for",
    "scheduler.py:Scheduler._serve:constant: behind = self._decodes(requests[position + 1:], now) if behind is None else behind -> behind = self._decodes(requests[position + 0:], now) if behind is None else behind": "the request itself is a chunk and owed nothing",
    "scheduler.py:Scheduler._serve:side: behind = self._decodes(requests[position + 1:], now) if behind is None else behind -> behind = self._decodes(requests[position + 1:], now)": "a list made for each chunk holds the same decodes: that it is made once only saves time",
    "scheduler.py:Scheduler._serve:exchange: tokens = grant(work=work, budget=budget, cap=cap) -> tokens = grant(work=work, budget=cap, cap=budget)": "the least of three does not depend on their order",
    "scheduler.py:Scheduler._serve:drop: if end > request.num_blocks * block_size and (not self._make_room(step, request, end)) -> if not self._make_room(step, request, end)": "a request that has the blocks grows by none: the comparison only saves the call",
    "scheduler.py:Scheduler._serve:boundary: if end > request.num_blocks * block_size and (not self._make_room(step, request, end)) -> if end >= request.num_blocks * block_size and (not self._make_room(step, request, end))": "a request that has the blocks grows by none: the comparison only saves the call",
    "scheduler.py:Scheduler._serve:loop: if end > request.num_blocks * block_size and (not self._make_room(step, request, end)) continue -> break": "whoever stands behind a request that evicted itself was passed over as a victim, and sits out",
    "scheduler.py:Scheduler._serve_drafts:exchange: drafts = self.policy.grant(work=request.num_drafts, budget=step.budget, cap=request.num_drafts) -> drafts = self.policy.grant(work=step.budget, budget=request.num_drafts, cap=request.num_drafts)": "the least of three does not depend on their order",
    "scheduler.py:Scheduler._serve_drafts:exchange: drafts = self.policy.grant(work=request.num_drafts, budget=step.budget, cap=request.num_drafts) -> drafts = self.policy.grant(work=request.num_drafts, budget=request.num_drafts, cap=step.budget)": "the least of three does not depend on their order",
    "scheduler.py:Scheduler._serve_drafts:boundary: if drafts > slots and (not self.policy.fits_whole(needed=more, free=pool.free, promised=others)) -> if drafts >= slots and (not self.policy.fits_whole(needed=more, free=pool.free, promised=others))": "where both are equal the assignment changes nothing",
    "scheduler.py:Scheduler._serve_drafts:exchange: if drafts > slots and (not self.policy.fits_whole(needed=more, free=pool.free, promised=others)) -> if drafts > slots and (not self.policy.fits_whole(needed=others, free=pool.free, promised=more))": "a sum does not depend on its order",
    "scheduler.py:Scheduler._scan:loop: if step.scan_over and (not self._holders) break -> continue": "the next line passes everybody without blocks over: the break only saves time",
    "scheduler.py:Scheduler._scan:delete: if step.scan_over and (not self._holders) break -> nothing": "the next line passes everybody without blocks over: the break only saves time",
    "scheduler.py:Scheduler._scan:drop: if request.remote_tokens > at_hand and request.sync_load -> if request.remote_tokens > at_hand": "a load that is not within the step asks for neither number",
    "scheduler.py:Scheduler._has_room:exchange: return self.policy.fits_whole(needed=needed, free=self.pool.free, promised=others) -> return self.policy.fits_whole(needed=others, free=self.pool.free, promised=needed)": "a sum does not depend on its order",
    "policy.py:Policy.reserves:boundary: if tokens > limit - 1 -> if tokens >= limit - 1": "where both are equal the assignment changes nothing",
    "scheduler.py:Scheduler._admit:exchange: tokens = self.policy.grant(work=work, budget=flight.step.budget, cap=self.config.prefill_cap) -> tokens = self.policy.grant(work=work, budget=self.config.prefill_cap, cap=flight.step.budget)": "the least of three does not depend on their order",
    "pool.py:CountingPool.grow:boundary: if new <= 0 -> if new < 0": "growing by no block changes nothing",
    "pool.py:CountingPool.grow:boundary: if kept > new -> if kept >= new": "where both are equal the assignment changes nothing",
}
