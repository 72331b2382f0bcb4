"""Scenario files are read strictly; what is wrong with one is said in one line."""

from pathlib import Path

import pytest

from onbeat_proofs.scenarios.files import (
    Abort,
    Add,
    Bounds,
    Check,
    Deliver,
    Expectation,
    Ineligible,
    Pause,
    RemoteDone,
    RemoteFailed,
    Repeat,
    ResetPrefixCache,
    Resume,
    Scenario,
    Schedule,
    Stop,
    flatten,
    load_path,
    load_paths,
    load_text,
)
from onbeat_spec.config import Config
from onbeat_spec.errors import ScenarioError

# --- Reading -----------------------------------------------------------------------------------------------------


def test_every_operation_is_read() -> None:
    (scenario,) = load_text("""
name: all of them
case: B00
source: https://example.org/1
invariants: [budget, one-place]
violates: [progress]
config: {num_blocks: 1_000, scheduling: priority}
steps:
  - add: {id: a, prompt: 20, max_tokens: 3, priority: -1, prefix: [p, 8], remote: {tokens: 4, mode: sync}, output: [5]}
  - add: {id: on, prompt: 1}
  - abort: a
  - abort: {id: a, instance: 0}
  - stop: a
  - schedule
  - schedule:
  - schedule: {throttle: true, budget: 0, accept: {a: 1}}
    expect: {scheduled: {}, computed: {a: {at_most: 3, at_least: 1}}, free_blocks: {at_least: 2}, saturated: false}
  - remote_done: a
  - remote_failed: {id: a}
  - pause: all
  - resume
  - resume: true
  - reset_prefix_cache: {}
  - deliver: 2
  - ineligible: {id: a, steps: 2}
  - repeat: {times: 2, steps: [{check: {waiting: ["r{i}"], finished: {"r{i}": stop}, first_chunk: {at_most: 3}}}]}
""")
    bounds = {"a": Bounds(at_most=3, at_least=1)}
    expectation = Expectation({}, computed=bounds, free_blocks=Bounds(at_least=2), saturated=False)
    assert scenario == Scenario(
        name="all of them",
        case="B00",
        source="https://example.org/1",
        invariants=("budget", "one-place"),
        violates=("progress",),
        config=Config(num_blocks=1000, scheduling="priority"),
        steps=(
            Add("a", 20, 3, priority=-1, prefix=("p", 8), remote_tokens=4, remote_mode="sync", output=(5,)),
            Add("on", 1, 16),
            Abort("a"),
            Abort("a", 0),
            Stop("a"),
            Schedule(),
            Schedule(),
            Schedule(True, 0, {"a": 1}, expectation),
            RemoteDone("a"),
            RemoteFailed("a", 0),
            Pause("all"),
            Resume(),
            Resume(),
            ResetPrefixCache(),
            Deliver(2),
            Ineligible("a", 2),
            Repeat(2, (Check(Expectation(waiting=("r{i}",), finished={"r{i}": "stop"}, first_chunk={"at_most": 3})),)),
        ),
    )


def test_a_repeat_is_written_out_with_its_turn_in_every_id() -> None:
    inner = Repeat(2, (Abort("x{i}"),))
    add = Add("r{i}", 5, prefix=("p{i}", 2))
    expect = Expectation(scheduled={"r{i}": 5}, waiting=("r{i}", "q"))
    located = list(flatten((Resume(), Repeat(2, (add, Schedule(accept={"r{i}": 1}, expect=expect), inner)))))
    assert [op for _, op in located[1:5]] == [
        Add("r0", 5, prefix=("p0", 2)),
        Schedule(accept={"r0": 1}, expect=Expectation(scheduled={"r0": 5}, waiting=("r0", "q"))),
        Abort("x0"),
        Abort("x1"),
    ]
    assert located[5].op == Add("r1", 5, prefix=("p1", 2))
    assert [where for where, _ in located[:4]] == [
        "steps[0]",
        "steps[1].repeat.steps[0]",
        "steps[1].repeat.steps[1]",
        "steps[1].repeat.steps[2].repeat.steps[0]",
    ]


HEAD = "name: n\nsteps:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no scenario"),
        ("name: x", "document 1 (x), line 1: lacks the key steps"),
        ("name: 5\nsteps: []", "document 1, line 1: name: is 5; it must be text, so put it in quotes"),
        ("name: a\nsteps: []\n---\n", "document 2, line 4: is empty; it must be a mapping"),
        ("name: a\nsteps: []\n---\nname: a\nsteps: []\n", "document 2 (a), line 4: name: 'a' is used by"),
        (HEAD + "- add: {id: a, prompt: 1e3}", "line 3: steps[0].add.prompt: is 1000.0; it must be a whole number"),
        (HEAD + "- add: {id: a, prompt: 2.0}", "steps[0].add.prompt: is 2.0; it must be a whole number"),
        (HEAD + "- add: {id: a, prompt: 010}", "steps[0].add.prompt: is '010'; it must be a whole number"),
        (HEAD + "- add: {id: a, prompt: true}", "steps[0].add.prompt: is true; it must be a whole number"),
        (HEAD + "- add: {id: 1, prompt: 2}", "steps[0].add.id: is 1; it must be text, so put it in quotes"),
        (HEAD + "- add: {id: a, prompt: 2, max_token: 3}", "add.max_token: there is no such key; did you mean max_tok"),
        (HEAD + "- add: {id: a, prompt: 3, prefix: [x, 4]}", "add.prefix: is 4 tokens long, the prompt only 3"),
        (HEAD + "- add: {id: a}\n  add: {id: b}", "line 4: the key 'add' stands twice in one mapping (also on line 3)"),
        (HEAD + "- add: {id: a, prompt: 1}\n  stop: b", "steps[0]: has add and stop; a step is one operation"),
        (HEAD + "- stop: a\n  expect: {saturated: true}", "steps[0]: expect goes with schedule only"),
        (HEAD + "- {}", "steps[0]: has no operation; it must have one of add,"),
        (HEAD + "- deliver", "steps[0]: is 'deliver'; it must be 'schedule' or 'resume' or 'reset_prefix_cache'"),
        (HEAD + "- pause: some", "steps[0].pause: is 'some'; it must be 'new' or 'all'"),
        (HEAD + "- deliver: 0", "steps[0].deliver: is 0; it must be at least 1"),
        (HEAD + "- check: {}", "steps[0].check: is empty; give something or leave it out"),
        (HEAD + "- check: {free_blocks: {at_last: 3}}", "free_blocks.at_last: there is no such key; did you"),
        (HEAD + "- check: {finished: {a: done}}", "is 'done'; it must be 'stop' or 'length' or 'abort' or 'error'"),
        (HEAD + "- schedule\nconfig: {policy: fifo}", "config.policy: is 'fifo'; it must be a policy's name (onbeat,"),
        (HEAD + "- schedule\nconfig: {block_size: 0}", "config.block_size: is 0; it must be at least 1"),
        (HEAD + "- schedule\nconfig: {prefill_schedule_interval: 99}", "config: prefill_schedule_interval is 99; it"),
        (HEAD + "- schedule\nconfig: {ranks: 2}", "config.ranks: scenarios of a group of ranks are not supported"),
        (HEAD + "- schedule: {}\n  rank: 1", "steps[0].rank: scenarios of a group of ranks are not supported"),
        (HEAD + "- deliver: {to: 1, message: wake}", "steps[0].deliver: messages in flight belong to groups"),
        (HEAD + "- stop: [a", "not YAML: while parsing a flow sequence"),
        ("1: 2", "line 1: the key 1 is not text; put it in quotes"),
        ("a: &x [*x]", "a value contains itself"),
        ("!python/object:os.system x", "the tag !python/object:os.system is not supported; remove it"),
        ("name: |\n  two\n  lines\nsteps: []", "holds a line break"),
        ("[" * 100_000, "<text>"),
        ("\x00", "not YAML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_text(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("<text>")
    assert "\n" not in str(caught.value)


def test_text_that_looks_like_something_else_stays_text() -> None:
    texts = ["no", "2024-01-01", "'7'", "!!str 7", "0x1F"]
    (scenario,) = load_text(HEAD + "".join(f"- {{stop: {text}}}\n" for text in texts))
    assert scenario.steps == (Stop("no"), Stop("2024-01-01"), Stop("7"), Stop("7"), Stop("0x1F"))


# --- Files -------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.yaml").write_text("name: two\nsteps: []\n---\nname: three\nsteps: []\n")
    (tmp_path / "a.yaml").write_text("name: one\nsteps: []\n")
    (tmp_path / "c.txt").write_text("no scenario")
    scenarios = load_path(tmp_path)
    assert [scenario.name for scenario in scenarios] == ["one", "two", "three"]
    assert scenarios[1].origin == tmp_path / "b" / "1.yaml"
    assert load_paths([tmp_path / "a.yaml", tmp_path]) == scenarios


def test_a_name_is_used_once_in_all_files(tmp_path: Path) -> None:
    for file in ("a.yaml", "b.yaml"):
        (tmp_path / file).write_text("name: same\nsteps: []\n")
    with pytest.raises(ScenarioError, match=r"b\.yaml: the name 'same' is used in .*a\.yaml already"):
        load_path(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.yaml", r"nowhere\.yaml: cannot be read \(No such file"),
        ("latin.yaml", "it is not UTF-8 text"),
        ("empty", r"holds no \*\.yaml"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScenarioError, match=message):
        load_path(tmp_path / path)
