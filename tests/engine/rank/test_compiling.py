"""What a rank compiles beside its steps."""

import threading
from concurrent.futures import Future

import pytest

from onbeat_engine.rank.compiling import Compiling
from onbeat_engine.wire.messages import Answer, Compile
from onbeat_engine.wire.params import StructuredOutput

WANTED = StructuredOutput(json_object=True)


def answers(compiling: Compiling, count: int) -> list[Answer]:
    """Wait for answers."""
    found: list[Answer] = []
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join(10)
    found += compiling.take()
    assert len(found) == count
    return found


def test_the_answer_comes_when_it_is_compiled() -> None:
    go: Future[None] = Future()
    seen: list[StructuredOutput] = []

    def compile_grammar(structured: StructuredOutput) -> None:
        go.result(10)
        seen.append(structured)

    compiling = Compiling(3, compile_grammar)
    assert not compiling.busy
    compiling.start(Compile(call=7, structured=WANTED))
    compiling.start(Compile(call=8, structured=WANTED))
    assert (compiling.busy, compiling.take()) == (True, [])
    go.set_result(None)
    assert {(each.rank, each.call, each.ok) for each in answers(compiling, 2)} == {(3, 7, True), (3, 8, True)}
    assert (compiling.busy, seen) == (False, [WANTED, WANTED])


def test_a_failure_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever waits must not wait for ever; the request that needs the grammar is told."""

    def compile_grammar(structured: StructuredOutput) -> None:
        raise RuntimeError("planted")

    compiling = Compiling(0, compile_grammar)
    compiling.start(Compile(call=1, structured=WANTED))
    answers(compiling, 1)
    assert "planted" in caplog.text


def test_without_grammars_there_is_nothing_to_compile() -> None:
    compiling = Compiling(0, None)
    compiling.start(Compile(call=1, structured=WANTED))
    answers(compiling, 1)
