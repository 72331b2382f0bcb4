"""A model without weights: what a request samples depends on nothing but who it is and where the token stands.

So whoever delivers a token twice, drops one or swaps two is seen by comparing numbers. The ids of real vocabularies
(below 2**32) are left to scripted outputs.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from onbeat_proofs.foreign.branching import Memo, branch
from onbeat_proofs.scenarios.operations import Add
from onbeat_reference.request import Request
from onbeat_spec.policy import is_decode
from onbeat_spec.records import Place, Step

POSITIONS = 1 << 24
"""More than any sequence has."""
_FIRST_PREFIX = 1 << 60
_FIRST_STOP = 1 << 61


def _first(number: int) -> int:
    """Token id at position 0 of a request, beyond all vocabularies; its other tokens follow."""
    return (number + 1) * POSITIONS << 8


class Track:
    """One accepted request, as its client and the model know it. Counts are tokens unless they say otherwise."""

    __slots__ = (
        "awaited",
        "delivered",
        "first",
        "limit",
        "num_preemptions",
        "number",
        "prompt",
        "request",
        "script",
        "since",
        "stopping",
    )

    def __init__(self, request: Request, number: int, op: Add, since: int) -> None:
        self.request = request
        self.number = number
        """Unique in the run, also where an id is used again."""
        self.first = _first(number)
        self.prompt = request.num_prompt
        self.limit = min(request.limit, request.num_prompt + op.max_tokens)
        """Most tokens, prompt included; the scheduler may have lowered it when it accepted the request."""
        self.script = op.output or ()
        self.since = since
        """Steps scheduled before it came."""
        self.delivered = 0
        self.awaited = 0
        """What steps in flight sample for it, all of their drafts counted."""
        self.stopping = False
        """The next token delivered is a stop token."""
        self.num_preemptions = 0

    def sample(self, position: int, count: int) -> list[int]:
        """Return the tokens at `count` positions (indices in the whole sequence) from `position` on."""
        first = self.first
        if not self.script:
            return list(range(first + position, first + position + count))
        script, tokens = self.script, []
        for place in range(position, position + count):
            scripted = 0 <= place - self.prompt < len(script)
            tokens.append(script[place - self.prompt] if scripted else first + place)
        return tokens

    @property
    def stop_token(self) -> int:
        """The id that ends this request."""
        return _FIRST_STOP + self.number


Sample = tuple[Track, int, int]
"""What a step in flight samples for one request: the index of the first token in the request's sequence, if all its
drafts in flight before are accepted; and the number of drafts."""

Due = tuple[Track, list[int], str | None]
"""What the client of a request should get from a step, and how the request should end with it, if it does."""


class Flight(NamedTuple):
    """A step whose outputs have not come back."""

    turn: int
    """Number of the step, from 0, by our own count."""
    step: Step
    samples: list[Sample]
    accept: Mapping[str, int]
    loads: dict[Track, int]
    """Whose KV is loaded within this step, and up to which token."""


class FakeModel:
    """Runs the steps that a scheduler orders.

    Attributes:
        flights: the steps whose outputs have not come back, oldest first.
    """

    def __init__(self) -> None:
        self.flights: deque[Flight] = deque()
        self._turns = 0

    def run(
        self,
        step: Step,
        tracks: Mapping[str, Sequence[Track]],
        counts: Mapping[str, tuple[int, int]],
        accept: Mapping[str, int],
    ) -> tuple[list[str], list[str]]:
        """Work out, from the record of a step and the counts before it, what the step samples.

        Args:
            step: the record; taken at its word.
            tracks: the requests accepted under each id, the latest last.
            counts: computed and known tokens of every request that ran before the step.
            accept: draft tokens that turn out to be right.

        Returns:
            The ids that had more than one token of local work, and the ids that are no requests.
        """
        samples: list[Sample] = []
        loads: dict[Track, int] = {}
        prefill: list[str] = []
        strangers: list[str] = []
        admitted, drafts_of = step.admitted, step.drafts
        for id, tokens in step.scheduled.items():
            accepted = tracks.get(id)
            if not accepted:
                strangers.append(id)
                continue
            track = accepted[-1]
            counted = counts.get(id)
            if counted is None or id in admitted:
                counted = track.request.num_computed - tokens, track.request.num_tokens
            computed, total = counted
            if track.request.sync_load and track.request.external and id in admitted:
                loads[track] = track.request.external
            drafts = drafts_of.get(id, 0)
            if not is_decode(total - computed):
                prefill.append(id)
            # A scheduler that forgot a token in flight asks for it again: so it is sampled again, and that is seen.
            end = computed + tokens
            if end >= total or end >= track.prompt + track.delivered + track.awaited:
                samples.append((track, end - drafts, drafts))
                track.awaited += 1 + drafts
        self.flights.append(Flight(self._turns, step, samples, accept, loads))
        self._turns += 1
        return prefill, strangers

    def land(self) -> tuple[Flight, dict[str, list[int]], list[Due]]:
        """Return the oldest step in flight, what it sampled, and what of this is due to the clients."""
        flight = self.flights.popleft()
        sampled: dict[str, list[int]] = {}
        dues: list[Due] = []
        for track, position, drafts in flight.samples:
            id = track.request.id
            accepted = min(drafts, flight.accept.get(id, 0)) if drafts else 0
            tokens = track.sample(position, 1 + accepted)
            if track.stopping:
                tokens[0] = track.stop_token
            sampled[id] = tokens
            dues.append(_due(track, tokens, position))
            track.awaited -= 1 + drafts
            if accepted < drafts:
                self._shift(track, drafts - accepted)
        return flight, sampled, dues

    def spoil(self, track: Track, first_bad: int) -> bool:
        """A load within a step brought nothing from a token on; return whether such a load is in flight.

        What is in flight for the request was computed from KV that never came: it samples nothing.
        """
        if not any(first_bad < flight.loads.get(track, 0) for flight in self.flights):
            return False
        for flight in self.flights:
            flight.samples[:] = [sample for sample in flight.samples if sample[0] is not track]
            flight.loads.pop(track, None)
        track.awaited = 0
        return True

    def fork(self, memo: Memo) -> "FakeModel":
        """Return an independent copy; requests are copied with `memo`."""
        new = FakeModel()
        new._turns = self._turns
        for flight in self.flights:
            samples = [(branch(track, memo), position, drafts) for track, position, drafts in flight.samples]
            loads = {branch(track, memo): external for track, external in flight.loads.items()}
            new.flights.append(flight._replace(samples=samples, loads=loads))
        return new

    def _shift(self, track: Track, rejected: int) -> None:
        """Move what later steps sample for a request towards its start: they counted on drafts now rejected."""
        for flight in self.flights:
            flight.samples[:] = [
                (owner, position - rejected if owner is track else position, drafts)
                for owner, position, drafts in flight.samples
            ]


def _due(track: Track, tokens: list[int], position: int) -> Due:
    """Work out what a client is due, from nothing but what it got before."""
    if track.request.place is Place.FINISHED:
        return track, [], None
    if track.stopping:
        return track, tokens[:1], "stop"
    following = track.prompt + track.delivered
    if position != following:
        tokens = track.sample(following, len(tokens))
    room = track.limit - following
    if len(tokens) < room:
        return track, tokens, None
    return track, tokens if len(tokens) == room else tokens[:room], "length"


def request_for(op: Add, number: int) -> Request:
    """Build the request that an `add` asks for.

    Args:
        op: the operation.
        number: makes its tokens different from those of all other requests.
    """
    first = _first(number)
    shared = 0
    prompt: list[int] = []
    if op.prefix is not None:
        name, shared = op.prefix
        text = _FIRST_PREFIX + crc32(name.encode()) * POSITIONS
        prompt.extend(range(text, text + shared))
    prompt.extend(range(first + shared, first + op.prompt))
    return Request(
        op.id,
        prompt,
        op.max_tokens,
        priority=op.priority,
        stop_token_ids=(_FIRST_STOP + number,),
        remote_tokens=op.remote_tokens,
        remote_mode=op.remote_mode,
    )
