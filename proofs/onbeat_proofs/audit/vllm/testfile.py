"""A finding as a pytest file that needs nothing but vLLM: what goes into a bug report."""

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files

from onbeat_proofs.audit.results import Finding
from onbeat_proofs.scenarios.operations import (
    Abort,
    Add,
    Deliver,
    Op,
    Pause,
    RemoteDone,
    RemoteFailed,
    ResetPrefixCache,
    Resume,
    Schedule,
    Stop,
    flatten,
)
from onbeat_spec.catalogue import CATALOGUE
from onbeat_spec.config import Config

AT_LEAST = frozenset({"decode-never-held", "resume-bypasses", "one-token-passes"})
EQUAL = frozenset({"saturation-opens", "no-decode-no-hold", "beat-equals-baseline"})
FLAG = frozenset({"flag-means-backlog", "flag-only-when-open", "text-flag"})
AFTERWARDS = (
    ("visit-once", r"decode (\w+) got no token though", "assert {0!r} in world.got or {0!r} not in world.live"),
    ("progress", r"\d+ steps in a row did nothing", "assert world.got or not world.live"),
    (
        "oldest-finishes",
        r"(\w+)(?: was preempted for the younger|, the only request)",
        "assert {0!r} in world.got or {0!r} not in world.live",
    ),
    (
        "order-kept",
        r"fresh prefill (\w+) was admitted before the older (\w+)",
        "assert {1!r} in world.got or {0!r} not in world.got",
    ),
)
"""Invariants that the tokens of the last step show: a pattern of the message, and the line that asks for them."""
_OWN_IMPORT = re.compile(r"^from onbeat_proofs[^\n]*\n", re.MULTILINE)


def test_file(finding: Finding, module: str, name: str, version: str) -> str | None:
    """Return the text of a pytest file that fails as long as a class does what the finding shows.

    Args:
        finding: made small.
        module: of the class, importable by name.
        name: of the class.
        version: of the vLLM that it was found with.

    Returns:
        None if the finding speaks of what such a file does not have: draft tokens, or an invariant over time.
    """
    config = finding.scenario.config
    ops = [op for _, op in flatten(finding.scenario.steps)]
    if config.prefill_schedule_interval == 1:  # then the clock throttles nothing
        ops = [replace(op, throttle=False) if isinstance(op, Schedule) and op.throttle is None else op for op in ops]
    check = _check(finding, ops)
    if check is None or config.num_draft_tokens or not all(_line(op) is not None for op in ops):
        return None
    last = ops[-1]
    outer = name.partition(".")[0]
    one_run = {*FLAG, *(invariant for invariant, _, _ in AFTERWARDS)}
    two_runs = isinstance(last, Schedule) and finding.invariant not in one_run
    body = [str(_line(op)) for op in (ops[:-1] if two_runs else ops)]
    lines = [
        f"def run({'throttle: bool' if two_runs else ''}) -> Any:",
        f"    world = World(make_scheduler({outer}, {_sizes(config)}), depth={config.async_depth})",
        *(f"    world.{line}" for line in body),
        f"    return world.step(throttle{_budget(last)})" if two_runs else "    return world",
        "",
        "",
        f"def test_{re.sub('[^a-z]', '_', finding.invariant)}() -> None:",
        *(f"    {line}" for line in check),
    ]
    statement = CATALOGUE[finding.invariant].statement if finding.invariant in CATALOGUE else ""
    head = f'"""{finding.invariant}: {statement}\n\nvLLM {version}, {module}:{name}: {finding.message}\n"""'
    return "\n".join([head, "", _source(), f"from {module} import {outer}", "", "", *lines, ""])


def _source() -> str:
    """The harness and the world, as one text without imports of ours."""
    folder = files("onbeat_proofs.audit.vllm")
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("harness.py", "world.py")]
    bare = [_OWN_IMPORT.sub("", text.partition('"""\n')[2]) for text in texts]
    return "\n".join(text.strip("\n") + "\n" for text in bare)


def _sizes(config: Config) -> str:
    sizes = {
        "block_size": config.block_size,
        "num_blocks": config.num_blocks,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "max_model_len": config.longest_request,
        "policy": config.scheduling,
        "enable_prefix_caching": config.enable_prefix_caching,
        "long_prefill_token_threshold": config.long_prefill_token_threshold,
    }
    return ", ".join(f"{key}={value!r}" for key, value in sizes.items())


def _check(finding: Finding, ops: list[Op]) -> list[str] | None:
    """The lines that judge the run."""
    last, id, message = ops[-1], finding.invariant, repr(finding.message)
    if isinstance(last, Schedule) and last.throttle is True:
        runs = "throttled, unthrottled = run(True), run(False)"
        names = [op.id for op in ops if isinstance(op, Add) and re.search(rf"\b{re.escape(op.id)}\b", finding.message)]
        if id in AT_LEAST and names:
            # A message begins with the request, or says what it is; "a" is an article too.
            called = re.findall(rf"\b(?:decode|chunk|resume|waiting) ({'|'.join(names)})\b", finding.message)
            first = finding.message.partition(",")[0].partition(" ")[0]
            who = called[0] if called else first if first in names else names[0]
            return [runs, f"assert throttled.get({who!r}, 0) >= unthrottled.get({who!r}, 0), {message}"]
        if id == "no-empty-step":
            return [runs, f"assert throttled or not unthrottled, {message}"]
        if id in EQUAL:
            return [runs, f"assert throttled == unthrottled, {message}"]
    if isinstance(last, Schedule) and id in FLAG and isinstance(last.throttle, bool):
        shown = bool(re.search(r"flag (?:is|became) (?:True)|written \(True\)", finding.message))
        return [f"assert run().flag is {not shown}, {message}"]
    if isinstance(last, Schedule) and isinstance(last.throttle, bool):
        for invariant, pattern, line in AFTERWARDS:
            match = re.match(pattern, finding.message) if invariant == id else None
            if match is not None:
                return ["world = run()", f"{line.format(*match.groups())}, {message}"]
    if id == "no-crash":
        return [f"run()  # raises: {finding.message.splitlines()[0]}"]
    return None


def _budget(op: Op) -> str:
    return f", budget={op.budget}" if isinstance(op, Schedule) and op.budget is not None else ""


def _line(op: Op) -> str | None:
    """One operation as a call of the world's."""
    match op:
        case Add():
            return f"add({', '.join(_arguments(op))})"
        case Schedule() if op.throttle is not None and not op.accept:
            return f"step({op.throttle}{_budget(op)})"
        case Deliver():
            return f"deliver({op.count})"
        case Abort() if op.instance is None:
            return f"abort({op.id!r})"
        case Stop():
            return f"stop({op.id!r})"
        case RemoteDone():
            return f"remote_done({op.id!r})"
        case RemoteFailed():
            return f"remote_failed({op.id!r}, {op.from_block})"
        case Pause():
            return f"pause({op.mode!r})"
        case Resume():
            return "resume()"
        case ResetPrefixCache():
            return "reset_prefix_cache()"
        case _:
            return None


def _arguments(op: Add) -> Iterator[str]:
    yield repr(op.id)
    yield f"prompt={op.prompt}"
    yield f"max_tokens={op.max_tokens}"
    if op.priority:
        yield f"priority={op.priority}"
    if op.prefix:
        yield f"prefix={op.prefix!r}"
    if op.remote_tokens:
        yield f"remote={(op.remote_tokens, op.remote_mode)!r}"
