"""Scenarios are written so that they are read as the same; their shapes are those of the schema, and only those."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onbeat_proofs.scenarios.files import (
    Abort,
    Add,
    Bounds,
    Check,
    Deliver,
    Expectation,
    Ineligible,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    Repeat,
    ResetPrefixCache,
    Resume,
    Scenario,
    Schedule,
    Stop,
    dump,
    load_path,
    load_text,
    schema,
)
from onbeat_proofs.scenarios.operations import Reason
from onbeat_spec.config import CONFIG_KEYS, Config
from onbeat_spec.errors import ConfigError
from onbeat_spec.policy import POLICIES

EXAMPLES = Path(__file__).parents[2] / "scenarios" / "examples"

# --- One authority -----------------------------------------------------------------------------------------------

CONFIG_SCHEMA = schema()["$defs"]["config"]["properties"]


def test_the_schema_has_the_keys_and_defaults_of_the_configuration() -> None:
    assert {key: value["default"] for key, value in CONFIG_SCHEMA.items()} == {
        key: getattr(Config(), key) for key in CONFIG_KEYS
    }
    assert all(type(value["default"]) is type(getattr(Config(), key)) for key, value in CONFIG_SCHEMA.items())


@pytest.mark.parametrize("key", [key for key in CONFIG_KEYS if "minimum" in CONFIG_SCHEMA[key]])
def test_the_schema_has_the_bounds_of_the_configuration(key: str) -> None:
    least = CONFIG_SCHEMA[key]["minimum"]
    Config(**{key: least})
    with pytest.raises(ConfigError, match=key):
        Config(**{key: least - 1})


@pytest.mark.parametrize("policy", [*POLICIES, "some.module:Class", "my/policy.py:Mine"])
def test_the_schema_knows_the_policies(policy: str) -> None:
    (scenario,) = load_text(f"name: n\nconfig: {{policy: '{policy}'}}\nsteps: []\n")
    assert scenario.config.policy == policy


def test_the_schema_has_the_shapes_of_the_operations() -> None:
    step = schema()["$defs"]["step"]["properties"]
    assert step.keys() - {"expect"} == {branch["required"][0] for branch in schema()["$defs"]["step"]["else"]["oneOf"]}
    defaults = {f.name: f.default for f in fields(Add) if f.default is not MISSING}
    for key, value in step["add"]["properties"].items():
        assert "default" not in value or value["default"] == defaults[key]
    expectation = schema()["$defs"]["expectation"]["properties"]
    assert list(expectation) == [f.name for f in fields(Expectation)]
    assert tuple(expectation["finished"]["additionalProperties"]["enum"]) == get_args(Reason)


# --- Writing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", load_path(EXAMPLES), ids=lambda scenario: scenario.name)
def test_an_example_survives_writing(scenario: Scenario) -> None:
    assert load_text(dump(scenario, "what it is\nand why")) == [scenario]


TRAPS = ["on", "null", "1", "1e3", "0E0", "010", "~", "=", "<<", "#", "'", '"', "- a", "a: b", "a b", "!x", "&x", "*x"]
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12),
    st.sampled_from([*TRAPS, "r{i}", "at_most"]),
)
COUNTS = st.integers(0, 5000)
NUMBERS = COUNTS | st.builds(Bounds, COUNTS, st.none() | COUNTS) | st.builds(Bounds, st.none(), COUNTS)


def _mapping(values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(NAMES, values, max_size=3)


LISTS = st.lists(NAMES, max_size=3).map(tuple)
KEYS: dict[str, st.SearchStrategy[object]] = {
    **dict.fromkeys(("preempted", "waiting", "running", "parked", "refused", "loading"), LISTS),
    **dict.fromkeys(("free_blocks", "prefill_tokens", "decode_tokens", "max_waiting"), NUMBERS),
    "saturated": st.booleans(),
    "finished": _mapping(st.sampled_from(get_args(Reason))),
}
EXPECTATIONS = (
    st.fixed_dictionaries({}, optional={f.name: KEYS.get(f.name, _mapping(NUMBERS)) for f in fields(Expectation)})
    .filter(bool)
    .map(lambda keys: Expectation(**keys))  # type: ignore[arg-type]
)


@st.composite
def adds(draw: st.DrawFn) -> Add:
    prompt = draw(COUNTS)
    prefix = draw(st.none() | st.tuples(NAMES, st.integers(0, prompt)))
    output = draw(st.none() | st.lists(COUNTS, max_size=3).map(tuple))
    mode = draw(st.sampled_from(["async", "sync"]))
    return Add(draw(NAMES), prompt, draw(COUNTS), draw(st.integers(-3, 3)), prefix, draw(COUNTS), mode, output)  # type: ignore[arg-type]


SCHEDULES = st.builds(
    Schedule,
    throttle=st.none() | st.booleans(),
    budget=st.none() | COUNTS,
    accept=st.none() | st.dictionaries(NAMES, COUNTS, max_size=3),
    expect=st.none() | EXPECTATIONS,
)
OPS: st.SearchStrategy[Op] = st.deferred(
    lambda: st.one_of(
        adds(),
        st.builds(Abort, NAMES, st.none() | COUNTS),
        st.builds(Stop, NAMES),
        SCHEDULES,
        st.builds(RemoteDone, NAMES),
        st.builds(RemoteFailed, NAMES, COUNTS),
        st.builds(Pause, st.sampled_from(["new", "all"])),
        st.just(Resume()),
        st.just(ResetPrefixCache()),
        st.builds(Deliver, st.integers(1, 2)),
        st.builds(Ineligible, NAMES, COUNTS),
        st.builds(Check, EXPECTATIONS),
        st.builds(Repeat, st.integers(0, 9), st.lists(OPS, max_size=3).map(tuple)),
    )
)
IDS = st.lists(st.sampled_from(["budget", "one-place"]), unique=True).map(tuple)
CONFIGS = st.builds(
    Config,
    policy=st.sampled_from([*POLICIES, "a.b:C", "x y.py:C"]),
    block_size=st.integers(1, 64),
    enable_prefix_caching=st.booleans(),
    async_depth=st.sampled_from([1, 2]),
    max_hold_steps=st.integers(1, 99),
)
STEPS = st.lists(OPS, max_size=6).map(tuple)
SCENARIOS = st.builds(Scenario, NAMES, st.none() | NAMES, st.none() | NAMES, IDS, IDS, CONFIGS, STEPS)


@settings(deadline=None)
@given(SCENARIOS, st.text())
def test_what_is_written_is_read_as_the_same(scenario: Scenario, header: str) -> None:
    assert load_text(dump(scenario, header)) == [scenario]


def test_only_what_is_not_default_is_written() -> None:
    scenario = Scenario("n", config=Config(num_blocks=5), steps=(Add("a", 3, 2), Repeat(2, (Schedule(), Resume()))))
    assert dump(scenario, "seed 7\nrun again") == (
        "# seed 7\n"
        "# run again\n"
        "name: n\n"
        "config:\n"
        "  num_blocks: 5\n"
        "steps:\n"
        "  - add: {id: a, prompt: 3, max_tokens: 2}\n"
        "  - repeat:\n"
        "      times: 2\n"
        "      steps:\n"
        "        - schedule: {}\n"
        "        - resume\n"
    )
