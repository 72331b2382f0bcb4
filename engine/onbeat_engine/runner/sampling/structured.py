"""Structured output: what the text has to be, as masks over the vocabulary, by xgrammar.

xgrammar is imported when the first structured request comes: it is an extra.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from onbeat_engine.runner.sampling.json_schemas import check_schema
from onbeat_engine.runner.sampling.transfer import to_device
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import StructuredOutput
from onbeat_spec.errors import ProtocolMisuse

MAX_SCHEMA_CHARS = 65536
CACHE_BYTES = 256 << 20
"""Most memory for compiled grammars."""


class Vocabulary(Protocol):
    """What is asked of a tokenizer."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        ...

    @property
    def pieces(self) -> Sequence[bytes]:
        """What each token writes; nothing for a special token."""
        ...


class StructuredRow(Protocol):
    """What is asked of a request: `State` of the plan."""

    request: Any
    matcher: Any


class Matcher:
    """A request's place in its grammar."""

    __slots__ = ("accepted", "inner")

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.accepted = 0
        """Output tokens that it has been told."""

    def tell(self, output: Sequence[int]) -> None:
        """Bring it up to date with all output tokens so far."""
        if self.accepted > len(output):
            self.inner.reset()
            self.accepted = 0
        for token in output[self.accepted :]:
            self.accepted += 1
            if not self.inner.is_terminated():
                # Only a token that the mask did not rule out can come here.
                self.inner.accept_token(token)


class Grammars:
    """Compiles grammars, keeps them, and makes masks of them. Compiling is thread-safe.

    Args:
        vocabulary: called once, when the first structured request comes.
        vocab_size: V, columns of the logits.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], vocab_size: int) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._xgrammar: Any = None
        self._compiler: Any = None
        self._ends: list[int] = []
        self._bits = torch.arange(32, dtype=torch.int32)

    def check(self, structured: StructuredOutput) -> None:
        """Compile; the front end does so before it takes a request.

        Raises:
            BadRequest: xgrammar is not installed, the model has no end token, or the schema is none, or is one that a
                grammar cannot keep (`schemas`), or that no text keeps.
        """
        first = self._xgrammar_matcher(self._compiled(structured))
        mask = self._xgrammar.allocate_token_bitmask(1, self._vocab_size)
        first.fill_next_token_bitmask(mask, 0)
        if not mask.any():
            raise BadRequest("the JSON schema cannot be used: no text keeps it", "response_format")

    def matcher(self, structured: StructuredOutput) -> Matcher:
        """Return the start of a text.

        Raises:
            BadRequest: as `check`.
        """
        return Matcher(self._xgrammar_matcher(self._compiled(structured)))

    def mask(self, logits: Any, rows: Sequence[tuple[int, StructuredRow, int]]) -> None:
        """Set to minus infinity what the grammars rule out, in place. After its end a text has end tokens only.

        Args:
            logits: [S, V].
            rows: of the structured requests: row number, state, position of the token to be sampled.

        Raises:
            ProtocolMisuse: the tokens before it are not on the host: structured requests cannot run a step ahead.
        """
        masks = self._xgrammar.allocate_token_bitmask(len(rows), self._vocab_size)
        ended = []
        for index, (_, state, position) in enumerate(rows):
            request, matcher = state.request, state.matcher
            if len(request.tokens) < position:
                raise ProtocolMisuse(
                    f"request {request.id} is structured: position {position} cannot be sampled before the "
                    f"{len(request.tokens)} known tokens are {position}"
                )
            matcher.tell(request.tokens[request.num_prompt : position])
            if matcher.inner.is_terminated():
                ended.append(index)
            else:
                matcher.inner.fill_next_token_bitmask(masks, index)
        allowed = (masks[:, :, None] >> self._bits & 1).bool().flatten(1)[:, : self._vocab_size]
        # Where a grammar leads nowhere the text ends, too: of no token at all none can be chosen.
        for index in {*ended, *(~allowed.any(1)).nonzero().flatten().tolist()}:
            allowed[index] = False
            allowed[index, self._ends] = True
        numbers = to_device([row for row, _, _ in rows], torch.int64, logits.device)
        ruled_out = ~allowed.to(logits.device)
        logits[numbers] = logits[numbers].masked_fill_(ruled_out, -torch.inf)

    def _xgrammar_matcher(self, compiled: Any) -> Any:
        return self._xgrammar.GrammarMatcher(compiled)

    def _compiled(self, structured: StructuredOutput) -> Any:
        # In strict mode a schema that names no properties would allow none.
        schema, strict = ({"type": "object"}, False) if structured.json_object else (structured.json_schema, True)
        check_schema(schema)
        try:
            text = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise BadRequest(f"the JSON schema cannot be written as JSON: {error}", "response_format") from None
        if len(text) > MAX_SCHEMA_CHARS:
            raise BadRequest(
                f"the JSON schema has {len(text)} characters; at most {MAX_SCHEMA_CHARS} are taken", "response_format"
            )
        with self._lock:
            self._load()
            try:
                return self._compiler.compile_json_schema(text, strict_mode=strict)
            except (RuntimeError, ValueError, TypeError) as error:
                raise BadRequest(f"the JSON schema cannot be used: {_reason(error)}", "response_format") from None

    def _load(self) -> None:
        if self._compiler is not None:
            return
        try:
            import xgrammar  # noqa: PLC0415 - an extra, and slow to import
        except ImportError:
            raise BadRequest(
                "structured output needs xgrammar: pip install 'onbeat[structured]'", "response_format"
            ) from None
        vocabulary = self._vocabulary()
        self._ends = sorted(id for id in vocabulary.eos_token_ids if id < self._vocab_size)
        if not self._ends:
            raise BadRequest("structured output needs an end token, and the model has none", "response_format")
        info = xgrammar.TokenizerInfo(
            list(vocabulary.pieces[: self._vocab_size]), vocab_size=self._vocab_size, stop_token_ids=self._ends
        )
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_limit_bytes=CACHE_BYTES)


def _reason(error: Exception) -> str:
    """Return what an error of xgrammar says, without the place in its source."""
    lines = str(error).strip().splitlines()
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", lines[0]) if lines else type(error).__name__
