"""Grammars of structured output, and how far a text has come in one, by xgrammar.

The front end compiles a grammar to see whether it can be used, a rank to sample by it. xgrammar is imported when the
first structured request comes: it is an extra, and it imports torch.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from onbeat_engine.text.json_schemas import check_schema
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import StructuredOutput

MAX_SCHEMA_CHARS = 65536
CACHE_BYTES = 256 << 20
"""Most memory for compiled grammars."""


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

    def allow(self, bitmask: Any, row: int) -> bool:
        """Set the bits of the tokens that may come next; False: the text has ended, and nothing is set.

        Args:
            bitmask: as `Grammars.bitmask` returns it.
            row: of the bitmask.
        """
        if self.inner.is_terminated():
            return False
        self.inner.fill_next_token_bitmask(bitmask, row)
        return True


class Grammars:
    """Compiles grammars, and keeps them; thread-safe.

    Args:
        tokenizer: called once, when the first structured request comes.
        vocab_size: V, of the model.

    Attributes:
        ends: tokens that end a text; known once a grammar was compiled.
    """

    def __init__(self, tokenizer: Callable[[], Tokenizer], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size
        self._lock = threading.Lock()
        self._xgrammar: Any = None
        self._compiler: Any = None
        self.ends: list[int] = []

    def check(self, structured: StructuredOutput) -> None:
        """Compile; the front end does so before it takes a request.

        Raises:
            BadRequest: xgrammar is not installed, the model has no end token, or the schema is none, or is one that a
                grammar cannot keep (`json_schemas`), or that no text keeps.
        """
        first, bitmask = self.matcher(structured), self.bitmask(1)
        first.allow(bitmask, 0)
        if not bitmask.any():
            raise BadRequest("the JSON schema cannot be used: no text keeps it", "response_format")

    def matcher(self, structured: StructuredOutput) -> Matcher:
        """Return the start of a text.

        Raises:
            BadRequest: as `check`.
        """
        compiled = self._compiled(structured)  # imports xgrammar, too
        return Matcher(self._xgrammar.GrammarMatcher(compiled))

    def bitmask(self, rows: int) -> Any:
        """Return an int32 tensor [rows, V / 32, rounded up] on the host, for `Matcher.allow`: a bit for each token.

        A grammar must have been compiled.
        """
        return self._xgrammar.allocate_token_bitmask(rows, self.vocab_size)

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
        tokenizer = self._tokenizer()
        self.ends = sorted(id for id in tokenizer.eos_token_ids if id < self.vocab_size)
        if not self.ends:
            raise BadRequest("structured output needs an end token, and the model has none", "response_format")
        info = xgrammar.TokenizerInfo(
            list(tokenizer.pieces[: self.vocab_size]), vocab_size=self.vocab_size, stop_token_ids=self.ends
        )
        self._xgrammar = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_limit_bytes=CACHE_BYTES)


def _reason(error: Exception) -> str:
    """Return what an error of xgrammar says, without the place in its source."""
    lines = str(error).strip().splitlines()
    return re.sub(r"^\[[\d:]+\] \S+:\d+: ", "", lines[0]) if lines else type(error).__name__
