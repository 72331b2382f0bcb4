"""Text of tokens as they come: whole characters, nothing of a stop string, each chunk with the ids that wrote it."""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from onbeat_engine.text.stops import StopStrings, stop_strings
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.params import SamplingParams

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Chunk(NamedTuple):
    """What may be told now. Its text is what its ids write, unless it is the last one: that may be cut by a stop."""

    text: str
    token_ids: list[int]
    stop: str | None = None
    """The stop string that ended the text; nothing comes after this chunk."""


class _Unit(NamedTuple):
    """Tokens that only together write whole characters."""

    text: str
    ids: list[int]


class Detokenizer:
    """The text of one request's output.

    Text is told in units of whole tokens and whole characters (case B99). A unit waits while any of it may still become
    part of a stop string (case B98), and while its text ends in U+FFFD, which may be a character in the making. All
    chunks together have the text that `Tokenizer.decode(ids, after_text=True)` has, up to the stop.

    Several stop strings: the one that ends first cuts the text, and of those that end there the longest, however the
    text is cut into tokens. Those that end within the first `min_tokens` tokens do not count, as in vLLM.

    The time is constant per character, however long the text.

    Args:
        tokenizer: of the model.
        params: of the request.

    Raises:
        BadRequest: the stop strings are too long.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._params = params
        self._skipped = tokenizer.special_ids if params.skip_special_tokens else frozenset()
        self._stops: StopStrings | None = stop_strings(params.stop) if params.stop else None
        self._node = StopStrings.ROOT
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._units: deque[_Unit] = deque()
        """Closed units that wait."""
        self._texts: list[str] = []
        self._ids: list[int] = []
        """The unit that is still open."""
        self._waiting = 0
        """Characters of all of these."""
        self._parts: list[str] = []
        self.num_tokens = 0
        """Tokens taken in; those after a stop string are not."""
        self.ended = False

    @property
    def text(self) -> str:
        """All the text told so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    def update(self, token_ids: Sequence[int], *, stop_token: bool = False, finished: bool = False) -> Chunk:
        """Take tokens in, and return what may be told now.

        Args:
            token_ids: the next ids of the output.
            stop_token: the last of them is the token that ended the output; it writes nothing, unless
                `include_stop_str_in_output`.
            finished: no more tokens will come; nothing is held back any longer.
        """
        if self.ended:
            return Chunk("", [])
        silent = len(token_ids) - 1 if stop_token and not self._params.include_stop_str_in_output else -1
        for index, id in enumerate(token_ids):
            self.num_tokens += 1
            self._ids.append(id)
            if index != silent and id not in self._skipped:
                cut = self._write(self._utf8.decode(self._tokenizer.piece(id)))
                if cut is not None:
                    return self._stop(*cut)
            self._close_if_whole()
        if finished or stop_token:
            cut = self._write(self._utf8.decode(b"", final=True))
            return self._stop(*cut) if cut is not None else self._end()
        return self._told(self._waiting - (self._stops.held[self._node] if self._stops else 0))

    def _write(self, text: str) -> tuple[int, int] | None:
        """Add text; return where a stop string in it begins and ends, counted from the first character that waits."""
        if text:
            self._texts.append(text)
        before = self._waiting
        self._waiting += len(text)
        stops = self._stops
        if stops is None:
            return None
        node = self._node
        for index, character in enumerate(text):
            node = stops.step(node, character)
            length = stops.matched[node]
            if length and self.num_tokens > self._params.min_tokens:
                end = before + index + 1
                return end - length, end
        self._node = node
        return None

    def _close_if_whole(self) -> None:
        """Close the open unit if whole characters are in it."""
        if not self._utf8.getstate()[0] and not (self._texts and self._texts[-1].endswith(_REPLACEMENT)):
            self._close()

    def _close(self) -> None:
        self._units.append(_Unit("".join(self._texts), self._ids))
        self._texts = []
        self._ids = []

    def _told(self, free: int) -> Chunk:
        """Return the closed units that lie within the first `free` characters."""
        texts: list[str] = []
        ids: list[int] = []
        units = self._units
        while units and len(units[0].text) <= free:
            unit = units.popleft()
            free -= len(unit.text)
            self._waiting -= len(unit.text)
            texts.append(unit.text)
            ids += unit.ids
        return self._tell(texts, ids)

    def _end(self) -> Chunk:
        self.ended = True
        self._close()
        return self._told(self._waiting)

    def _stop(self, begin: int, end: int) -> Chunk:
        """Return the last chunk: the text before a stop string, and all ids, those that wrote it too."""
        self.ended = True
        self._close()
        text = "".join(unit.text for unit in self._units)
        ids = [id for unit in self._units for id in unit.ids]
        kept = text[: end if self._params.include_stop_str_in_output else begin]
        self._units.clear()
        return self._tell([kept], ids)._replace(stop=text[begin:end])

    def _tell(self, texts: list[str], ids: list[int]) -> Chunk:
        text = "".join(texts)
        if text:
            self._parts.append(text)
        return Chunk(text, ids)
