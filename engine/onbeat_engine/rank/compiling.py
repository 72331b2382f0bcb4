"""Compiles grammars in a thread of the rank, before the requests come that need them: no step waits for one."""

import logging
import threading
from collections import deque
from collections.abc import Callable

from onbeat_engine.wire.messages import Answer, Compile
from onbeat_engine.wire.params import StructuredOutput

log = logging.getLogger("onbeat.compiling")

CompileGrammar = Callable[[StructuredOutput], object]
"""Compiles a grammar, and keeps it; thread-safe, and slow."""


class Compiling:
    """What one rank is asked to compile.

    Args:
        rank: its number.
        compile_grammar: None: there is nothing to compile.
    """

    def __init__(self, rank: int, compile_grammar: CompileGrammar | None) -> None:
        self.rank = rank
        self._compile = compile_grammar
        self._threads = 0
        self._done: deque[Answer] = deque()

    def start(self, message: Compile) -> None:
        """Begin to compile."""
        self._threads += 1
        threading.Thread(target=self._run, args=(message,), daemon=True, name="compile").start()

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return self._threads > 0

    def take(self) -> list[Answer]:
        """Return the answers to what has ended since the last call."""
        taken = [self._done.popleft() for _ in range(len(self._done))]
        self._threads -= len(taken)
        return taken

    def _run(self, message: Compile) -> None:
        try:
            if self._compile is not None:
                self._compile(message.structured)
        except Exception:  # a request that needs it will be told; the front end has compiled the same one
            log.exception("rank %d cannot compile a grammar", self.rank)
        self._done.append(Answer(rank=self.rank, call=message.call, ok=True))
