"""The trace format: what is written is read back, and nothing else is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import onbeat_spec
from onbeat_spec.config import Config
from onbeat_spec.errors import TraceError
from onbeat_spec.records import Eviction, Filler, LockStep, Place, State, Step, View
from onbeat_spec.trace import (
    VERSION,
    Accepted,
    CacheReset,
    Crashed,
    Header,
    Idle,
    Notice,
    PauseChanged,
    Record,
    Refused,
    StepRecord,
    Update,
)
from onbeat_spec.trace_read import TraceFile
from onbeat_spec.trace_write import line
from tests.reference.helpers import examples
from tests.spec.builders import CONFIG, decode, fresh, loading, partial, state

SCHEMA = Draft202012Validator(
    json.loads((Path(onbeat_spec.__file__).parent / "trace.schema.json").read_text(encoding="utf-8"))
)

# --- Anything that can be written ------------------------------------------------------------------------------------

IDS = st.one_of(st.sampled_from("abc"), st.text(max_size=4))
INTS = st.one_of(st.integers(0, 3), st.integers())
VIEWS = st.builds(
    View._make,
    st.tuples(IDS, *[INTS] * 10, st.booleans(), *[INTS] * 3, st.sampled_from(Place)),
)
COUNTS = st.dictionaries(IDS, INTS, max_size=3)
LISTS = st.lists(IDS, max_size=3)
TUPLES = LISTS.map(tuple)


@st.composite
def states(draw: Callable[[Any], Any], others: State | None = None) -> State:
    """A state; one that shares some of its requests with another one."""
    views = draw(st.lists(VIEWS, max_size=3))
    requests = {draw(st.just(each.id) | IDS): each for each in views}
    if others is not None:
        requests |= {key: others.requests[key] for key in others.requests if draw(st.booleans())}
    listed = draw(st.booleans())
    places = [tuple(k for k, v in requests.items() if v.place is place) for place in list(Place)]
    waiting, parked, running = places[:3] if listed else [draw(TUPLES) for _ in range(3)]
    numbers = [draw(INTS) for _ in range(8)]
    free, promised, num_running, num_loading, num_slots, held, by_running, in_flight = numbers
    saturated = draw(st.booleans())
    return State(
        requests, running, waiting, parked, free, promised, saturated, num_running, num_loading, num_slots,
        held, by_running, in_flight,
    )  # fmt: skip


TIMES = st.sampled_from([0.0, 1.5])
FILLERS = st.builds(Filler, INTS, st.none() | INTS)
LOCKS = st.builds(LockStep, INTS, st.none() | INTS, st.none() | TUPLES, st.none() | st.booleans(), st.none() | FILLERS)


@st.composite
def steps(draw: Callable[[Any], Any]) -> StepRecord:
    step = Step(draw(INTS), draw(st.booleans()))
    for name in ("hold", "lifted", "open", "scan_over", "prefill", "wrote_flag", "saturated"):
        setattr(step, name, draw(st.booleans()))
    step.budget = draw(INTS)
    step.scheduled, step.drafts = draw(COUNTS), draw(COUNTS)
    for name in ("sat_out", "held", "admitted", "resumed", "loading", "cancelled"):
        setattr(step, name, draw(LISTS))
    step.evictions = draw(st.lists(st.builds(Eviction, IDS, IDS, INTS), max_size=2))
    after = draw(states())
    before = after if draw(st.booleans()) else draw(states(after))
    whole = None if draw(st.booleans()) else draw(states(after))
    paused, time = draw(st.sampled_from([None, "new", "all"])), draw(TIMES)
    return StepRecord(step, before, after, whole, paused, draw(st.none() | LOCKS), time)


@st.composite
def notices(draw: Callable[[Any], Any]) -> Notice:
    after = draw(states())
    told = draw(st.booleans())
    what = draw(st.sampled_from(["abort", "load_finished", "load_failed"]))
    return Notice(what, draw(IDS), draw(st.booleans()), draw(states(after)) if told else None, after if told else None)


RECORDS: st.SearchStrategy[Record] = st.one_of(
    steps(),
    st.builds(Idle, LOCKS, TIMES, TIMES),
    st.builds(Update, INTS, COUNTS, st.dictionaries(IDS, IDS, max_size=2), TIMES),
    st.builds(Accepted, IDS, INTS, INTS),
    st.builds(Refused, IDS, INTS),
    notices(),
    st.builds(PauseChanged, st.sampled_from([None, "new", "all"])),
    st.builds(CacheReset, TUPLES),
    st.builds(Crashed, st.text(max_size=20)),
)


@st.composite
def headers(draw: Callable[[Any], Any]) -> Header:
    rank = draw(st.integers(0, 3))
    return Header(
        rank=rank,
        ranks=rank + draw(st.integers(1, 3)),
        config=Config(block_size=draw(st.integers(1, 20)), enable_prefix_caching=draw(st.booleans())),
        policy=draw(IDS),
        scheduler=draw(IDS),
        state=draw(states()),
        run=draw(IDS),
        part=draw(INTS),
        next_step=draw(INTS),
        started=draw(st.floats(0, 1e9)),
        software=draw(st.dictionaries(IDS, IDS, max_size=2)),
        any_flag=draw(st.booleans()),
        lost=draw(INTS),
        flights=tuple(draw(st.lists(st.tuples(INTS, COUNTS), max_size=2))),
    )


def plain(value: object) -> object:
    """A value that can be compared: steps are compared by what is in them."""
    if isinstance(value, StepRecord):
        step = {name: getattr(value.step, name) for name in Step.__slots__}
        return (step, value.before, value.after, value.whole, value.paused, value.lock, value.time)
    return value


def write(path: Path, header: Header, *records: Record) -> Path:
    most = header.config.max_num_batched_tokens
    path.write_text("".join(line(each, most) for each in (header, *records)), encoding="utf-8")
    return path


@examples(150)
@given(header=headers(), records=st.lists(RECORDS, max_size=4))
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, header: Header, records: list[Record]
) -> None:
    path = write(tmp_path_factory.mktemp("trace") / "t.ndjson", header, *records)
    file = TraceFile(path)
    read = list(file)
    file.close()
    assert file.header == header
    assert [number for number, _ in read] == list(range(2, len(records) + 2))
    assert [plain(each) for _, each in read] == [plain(each) for each in records]
    assert (file.cut, file.position) == (False, path.stat().st_size)
    for text in path.read_text(encoding="utf-8").splitlines():
        SCHEMA.validate(json.loads(text))


def test_a_plain_decode_step_is_a_short_line() -> None:
    after = partial(free=9_000, num_running=64, num_slots=64, in_flight=1)
    ids = [f"r{number}" for number in range(64)]
    step = Step(1_000_000, True, hold=True, budget=CONFIG.max_num_batched_tokens - 64, scheduled=dict.fromkeys(ids, 1))
    text = line(StepRecord(step, after, after, time=3600.125), CONFIG.max_num_batched_tokens)
    per_request = sum(len(json.dumps(id)) + len(":1,") for id in ids)
    assert len(text) - per_request < 150


# --- Strict ----------------------------------------------------------------------------------------------------------

HEADER = Header(0, 1, CONFIG, "onbeat", "m:C", state(decode("a")))
STEP = StepRecord(
    Step(0, True, hold=True, budget=15, scheduled={"a": 1}, held=["b"]),
    partial(decode("a"), fresh("b")),
    partial(decode("a", num_computed=5), fresh("b"), loading("c")),
)


def lines_of(*records: Header | Record) -> list[dict[str, Any]]:
    return [json.loads(line(each, CONFIG.max_num_batched_tokens)) for each in records]


def read(tmp_path: Path, text: str | bytes) -> TraceFile:
    path = tmp_path / "t.ndjson"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    file = TraceFile(path)
    try:
        list(file)
    finally:
        file.close()
    return file


def changed(packed: dict[str, Any], where: str, value: object) -> dict[str, Any]:
    """The same with one value set, at keys and indices that dots separate."""
    *path, last = where.split(".")
    inner: Any = packed
    for key in path:
        inner = inner[int(key)] if isinstance(inner, list) else inner[key]
    inner[int(last) if isinstance(inner, list) else last] = value
    return packed


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        ("0.rank", -1, r"t.ndjson:1: header.rank is -1 of 1 ranks"),
        ("0.rank", "0", r"t.ndjson:1: header.rank is '0'; it must be an integer"),
        ("0.onbeat-trace", VERSION + 1, r"t.ndjson:1: it is of version 2 and this reads version 1; use another"),
        ("0.config.block_size", 0, r"t.ndjson:1: block_size is 0; it must be at least 1"),
        ("0.config.block_size", True, r"t.ndjson:1: header.config.block_size is True; it must be of type int"),
        ("0.config.blocks", 1, r"t.ndjson:1: header.config has the unknown key 'blocks'"),
        ("0.sofware", {}, r"t.ndjson:1: header has the unknown key 'sofware'"),
        ("1.step", True, r"t.ndjson:2: step.step is True; it must be an integer"),
        ("1.hold", 1, r"t.ndjson:2: step.hold is 1; it must be true or false"),
        ("1.holds", True, r"t.ndjson:2: step has the unknown key 'holds'"),
        ("1.scheduled.a", 1.5, r"t.ndjson:2: step.scheduled\['a'\] is 1.5; it must be an integer"),
        ("1.held", "b", r"t.ndjson:2: step.held is 'b'; it must be a list"),
        ("1.held.0", 1, r"t.ndjson:2: step.held\[0\] is 1; it must be a string"),
        ("1.evictions", [["a", "b"]], r"t.ndjson:2: step.evictions\[0\] is \['a', 'b'\]; it must be \[victim, cause"),
        ("1.paused", "some", r"t.ndjson:2: step.paused is 'some'; it must be one of new, all"),
        ("1.after", [], r"t.ndjson:2: step.after is \[\]; it must be an object"),
        ("1.after.frees", 1, r"t.ndjson:2: step.after has the unknown key 'frees'"),
        ("1.after.requests.0.blocks", 1, r"step.after.requests\[0\] has the unknown key 'blocks'"),
        ("1.after.requests.0.place", "here", r"requests\[0\].place is 'here'; it must be one of waiting, parked"),
        ("1.before.requests.0", "z", r"before.requests\[0\] is 'z', which does not stand in the state that this one"),
        ("1.lock", {"phase": 0}, r"t.ndjson:2: step.lock has no 'number'"),
        ("1.lock", {"number": 0, "filler": {"expert_rows": 0}}, r"t.ndjson:2: step.lock.filler has no 'blocks'"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, where: str, value: object, message: str) -> None:
    number, _, rest = where.partition(".")
    packed = lines_of(HEADER, STEP)
    changed(packed[int(number)], rest, value)
    with pytest.raises(TraceError, match=message):
        read(tmp_path, "".join(json.dumps(each) + "\n" for each in packed))
    assert number == "0" or not SCHEMA.is_valid(packed[1]) or "before.requests" in where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no whole line in it"),
        ('{"onbeat-trace": 1', "there is no whole line in it"),
        ("{}\n", ":1: the first line is no header: it has no 'onbeat-trace'"),
        ("[" * 100_000 + "\n", ":1: "),
        ("nothing\n", ":1: Expecting value"),
        (b"\xff\xfe\n", ":1: "),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TraceError, match=f"t.ndjson.*{message}"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["{}", "[]", "1", '{"budget": 1}', '{"step": NaN}', '{"update": 0, "after": {}}'])
def test_a_line_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match=r"t.ndjson:2: "):
        read(tmp_path, line(HEADER, 16) + text + "\n")


def test_a_cut_last_line_is_let_pass_and_told(tmp_path: Path) -> None:
    """Wherever it was cut. In the middle of a file it is an error."""
    head, text = line(HEADER, 16), line(STEP, 16)
    for length in range(1, len(text)):
        assert read(tmp_path, head + text + text[:length]).cut
    assert not read(tmp_path, head + text).cut
    with pytest.raises(TraceError, match=r"t.ndjson:2: "):
        read(tmp_path, head + text[:-9] + "\n" + text)
