"""The policy: every decision of a step, as plain functions.

These functions are *the* text. The reference scheduler calls them, the prover runs them symbolically, the monitor
reads its words from them; there is no second copy. So: ints and bools only, no value used as an index or a key, and
nothing compiled.

Sources: vLLM PR 44558 (the throttle), PR 46532 (local work), and the public cases B01 to B24.
"""

from typing import ClassVar, Protocol


class Counts(Protocol):
    """What the words below read of a request; a `Request` and a `View` both have it."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_placeholders(self) -> int: ...
    @property
    def num_computed(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def eligible_at(self) -> int: ...


# --- The words -----------------------------------------------------------------------------------------------------


def local_work(request: Counts) -> int:
    """Tokens known, or certain to be known when the step runs, whose KV is not resident (cases B16, B42)."""
    return request.num_tokens + request.num_placeholders - request.num_computed


def runnable(request: Counts, now: int) -> bool:
    """Whether a request may get tokens in step `now`: it is eligible, and its last token is not already in flight."""
    return request.eligible_at <= now and request.num_tokens + request.num_placeholders < request.limit


def is_decode(work: int) -> bool:
    """A decode has at most one token of local work; where it stands relative to its prompt is irrelevant (B16)."""
    return work <= 1


# --- The decisions -------------------------------------------------------------------------------------------------


class Policy:
    """The decisions of a step. This class is the policy `onbeat`; a policy of one's own overrides methods.

    Every method is a pure function of ints and bools (work, budget, caps in tokens; blocks in KV blocks). Two or more
    are given by name only, since a type checker does not see two ints exchanged.
    """

    name: ClassVar[str] = "onbeat"

    # 1. Hold or not.

    def may_hold(self, *, throttle: bool, saturated: bool, held_steps: int, max_hold_steps: int) -> bool:
        """Whether this step may hold prefills at all, given that some decode justifies it.

        A saturated rank is never throttled (B02), and the hard bound wins over the flag (B08).
        """
        return throttle and not saturated and held_steps < max_hold_steps

    def justifies_hold(self, *, work: int, can_run: bool) -> bool:
        """Whether a running request is a reason to hold: a decode that can run in this very step (B07)."""
        return can_run and is_decode(work)

    # 2. The running list.

    def holds_running(self, work: int) -> bool:
        """Whether a hold passes over this running request: a chunk is, a decode never (B05)."""
        return not is_decode(work)

    def grant(self, *, work: int, budget: int, cap: int) -> int:
        """Tokens for a request: its work, as far as budget and cap allow."""
        if work > budget:
            work = budget
        if work > cap:
            work = cap
        return work

    def chunk_budget(self, *, budget: int, owed: int) -> int:
        """Budget open to a chunk: what the decodes behind it in the list are owed stays theirs (B12, B19)."""
        if owed >= budget:
            return 0
        return budget - owed

    # 3. No hold leaves a step empty.

    def lifts(self, num_scheduled: int) -> bool:
        """Whether a hold is lifted within the step, given how many requests got tokens."""
        return num_scheduled == 0

    # 4. The waiting list.

    def scans(self, *, preempted: bool, open: bool) -> bool:
        """Whether the step looks at waiting requests at all."""
        return open and not preempted

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        """Whether a hold passes over this waiting request.

        Args:
            work: its local work, counting KV at hand (cached or loaded) as resident.
            computed: its count of computed tokens; cached tokens count only once it has been admitted or loaded.
            external: tokens at hand thanks to a remote store; 0 = none.
        """
        return not is_decode(work) and external == 0

    def scans_past_held(self) -> bool:
        """Whether the scan goes on behind a held request."""
        return True

    def scans_past_spent(self) -> bool:
        """Whether the scan goes on, once the budget is used up, for remote loads: to start one costs no tokens.

        Who lacks only tokens is overtaken in nothing that it needs: slots and blocks for all of them are kept free.
        """
        return True

    def fits_whole(self, *, needed: int, free: int, promised: int) -> bool:
        """Whether what a request reserves fits beside what others were promised (B46, B60, B113).

        Args:
            needed: blocks it still needs for the tokens that it `reserves`.
            free: blocks in the pool that nobody holds.
            promised: blocks promised to other requests.
        """
        return needed + promised <= free

    def reserves(self, *, known: int, limit: int, drafts: int, loads: bool) -> int:
        """Tokens that a request is promised blocks for when it is let in (B46, B60).

        All that it knows. One that loads is promised its first decode step too, drafts included: preempted there, it
        would lose the KV that was just transferred. Never more than it can use: its last token needs no KV, so what
        fits the pool alone is always let in (B44).

        Args:
            known: tokens known.
            limit: most tokens that it may ever know, more than `known`.
            drafts: most draft tokens of a step.
            loads: its KV, or part of it, comes from a remote store in this allocation.
        """
        tokens = known
        if loads:
            tokens = known + 1 + drafts
            if tokens > limit - 1:
                tokens = limit - 1
        return tokens

    # 5. The saturation flag.

    def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
        """Whether this step writes the flag: only one that really offered admission to everybody (B03)."""
        return open and not hold and not preempted

    def saturated(self, *, backlog: bool, waiting: bool) -> bool:
        """The flag's new value.

        Args:
            backlog: a waiting request is left that only a lack of tokens, slots or blocks kept out.
            waiting: any request at all is left in the waiting list.
        """
        return backlog


class PullRequest44558(Policy):
    """The throttle as first published (vLLM PR 44558, released in 0.24.0)."""

    name = "pr44558"

    def justifies_hold(self, *, work: int, can_run: bool) -> bool:
        """Any decode, whether or not it can run in this step."""
        return is_decode(work)

    def lifts(self, num_scheduled: int) -> bool:
        """Never: a hold stands for the whole step."""
        return False

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        """Held iff nothing of it is computed yet."""
        return computed == 0

    def scans_past_held(self) -> bool:
        """The scan stops at the first held request."""
        return False

    def scans_past_spent(self) -> bool:
        """The scan stops at the first request that lacks tokens."""
        return False

    def saturated(self, *, backlog: bool, waiting: bool) -> bool:
        """Anything waiting counts, admissible or not."""
        return waiting


class LocalWork(PullRequest44558):
    """What followed it upstream: held iff more than one token of local work is left (vLLM PR 46532, from 0.25.0)."""

    name = "local-work"

    def holds_waiting(self, *, work: int, computed: int, external: int) -> bool:
        """Held iff more than one token of local work is left, remote or not."""
        return not is_decode(work)

    def writes_flag(self, *, hold: bool, preempted: bool, open: bool) -> bool:
        """Also while new requests are paused (from 0.32.0)."""
        return not hold and not preempted


POLICIES: dict[str, type[Policy]] = {p.name: p for p in (Policy, PullRequest44558, LocalWork)}
