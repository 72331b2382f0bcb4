"""What is known about the ways in which vLLM's schedulers differ from the invariants: sentences, and judgements.

The audit says what happens; whether it is meant is a matter of reading. A way that no note speaks of is shown all the
same, with the audit's own sentence, as not judged yet.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

Judgement = Literal["deliberate", "a side effect", "unintended"]
"""`deliberate`: upstream decided so. `a side effect`: of something that is. `unintended`: as far as can be told."""
JUDGEMENTS: dict[Judgement, str] = {
    "unintended": "Unintended, as far as can be told",
    "a side effect": "A side effect of something that is deliberate",
    "deliberate": "A deliberate difference",
}
AHEAD = "; it stood behind"


class Note(NamedTuple):
    """One finding: some ways of violating invariants that have one cause."""

    id: str
    sentence: str
    judgement: Judgement
    why: str
    ways: Sequence[tuple[str, str]]
    """Invariant, and a pattern of the audit's message without names and numbers (* and #)."""
    seen: int | None = None
    """The number of the finding among those that were known before the audit looked."""
    until: tuple[int, int] = (0, 99)
    """Releases up to this one, inclusive; in later ones the same message has another cause."""
    since: tuple[int, int] = (0, 0)
    """Releases from this one on, likewise."""


NOTES: tuple[Note, ...] = (
    Note(
        "resume-behind-resume",
        "A remote resume that has loaded everything but its last token gets nothing in a throttled step, because "
        "another resume that still has prompt to compute stands in front of it and is held.",
        "unintended",
        "The scan of the waiting list ends at the first request that is held. That is harmless while only fresh "
        "prefills are held; since 0.25.0 (PR 46532) partial resumes are held too, and full ones queue behind them.",
        (
            ("resume-bypasses", r".*one token of local work got nothing.*it stood behind remote resume \*, .*"),
            ("one-token-passes", r"remote resume \* .*it stood behind remote resume \*, .*"),
        ),
        1,
    ),
    Note(
        "resume-behind-fresh",
        "A ready remote resume gets nothing in a throttled step, because a fresh prefill of better priority stands in "
        "front of it and is held.",
        "unintended",
        "Up to 0.30 requests that were skipped are merged with the waiting list by priority, and the scan ends at the "
        "first request that is held. From 0.31.0 on requests that hold KV blocks are looked at first.",
        (
            ("resume-bypasses", r"remote resume \* with one token .*it stood behind waiting \*, which was held"),
            ("resume-bypasses", r"remote resume \* .*it stood behind waiting \*, which was held"),
            ("one-token-passes", r"remote resume \* .*it stood behind waiting \*, which was held"),
        ),
        2,
    ),
    Note(
        "finished-decode-holds",
        "The last token of the only running request is in flight. The request cannot run any more, but it counts as "
        "a decode and holds back a prefill: the step is empty.",
        "unintended",
        "A throttled step holds if any running request is past its prompt, also one that the same step passes over "
        "because its last token is in flight. Only the asynchronous scheduler has such requests.",
        (
            ("no-decode-no-hold", r"scheduled: .*"),
            ("no-decode-no-hold", r".* held though no decode can run"),
            ("no-empty-step", r"nothing scheduled \((no running decode can run|the decodes got nothing)\).*"),
            ("no-empty-step", r"nothing scheduled while .* was held"),
        ),
        3,
    ),
    Note(
        "ready-resume-no-flag",
        "A remote resume whose load has landed is left waiting for lack of tokens or slots on an open step, and the "
        "saturation flag stays down.",
        "unintended",
        "The flag leaves out the requests that were blocked when a step last looked at them: a separate queue up to "
        "0.30, a set since. A request leaves it only when it is admitted, not when its load lands.",
        (("flag-means-backlog", r"the flag is False and the admissible work left is .*remote resume \*.*"),),
        4,
    ),
    Note(
        "failed-load-no-flag",
        "The same with a request whose load failed: it waits like a fresh prefill, and does not count.",
        "unintended",
        "As above: it remains among the requests that the flag leaves out.",
        (("flag-means-backlog", r"the flag is False and the admissible work left is (waiting \*)(, waiting \*)*"),),
        4,
    ),
    Note(
        "pause-raises-flag",
        "While new requests are paused, waiting ones raise the saturation flag though nothing is saturated; the "
        "throttle is off after the pause until a step writes the flag again.",
        "unintended",
        "From 0.32.0 on the scan and the flag's update also run while new requests are paused, and count the "
        "requests that the pause kept out.",
        (
            ("flag-only-when-open", r"the flag became True in a step that was paused"),
            ("flag-means-backlog", r"the flag is True and the admissible work left is none; admission is paused.*"),
        ),
        5,
    ),
    Note(
        "pause-lowers-flag",
        "A step while new requests are paused clears the saturation flag.",
        "a side effect",
        "Of the same change that makes a pause raise the flag (0.32.0).",
        (("flag-only-when-open", r"the flag became False in a step that was paused"),),
    ),
    Note(
        "blocked-raise-flag",
        "With every slot taken and nobody waiting but requests that are blocked, the saturation flag goes up.",
        "unintended",
        "",
        (("flag-means-backlog", r"the flag is True and the admissible work left is none(; .* loading)?"),),
        6,
    ),
    Note(
        "last-chunk-held",
        "A prefill chunk with exactly one token of its prompt left is held as a chunk: it costs what a decode costs, "
        "and gets nothing.",
        "a side effect",
        "A running request counts as a prefill until its prompt is computed (`is_prefill_chunk`). Since PR 46532 "
        "local work decides for waiting requests; for running ones the prompt still does.",
        (
            ("decode-never-held", r"decode \* was held"),
            ("decode-never-held", r"decode \* got # tokens, and # without the throttle"),
            ("one-token-passes", r"(decode|chunk) \* was held with at most one token of local work"),
            ("visit-once", r"decode \* got no token though # were left"),
        ),
    ),
    Note(
        "one-token-behind-held",
        "A waiting request with one token of work, a one-token prompt or a full hit of the prefix cache, gets nothing "
        "because it stands behind another request that is held.",
        "a side effect",
        "The scan of the waiting list ends at the first request that is held; no request overtakes it.",
        (("one-token-passes", r"waiting \* has one token .*it stood behind .*"),),
    ),
    Note(
        "one-token-held",
        "A waiting request with one token of work is held itself.",
        "deliberate",
        "In 0.24.0 whatever has nothing computed is held (PR 44558), be it a one-token prompt or one whose rest is in "
        "the prefix cache. Since 0.25.0 (PR 46532) local work decides.",
        (
            (
                "one-token-passes",
                r"waiting \* has one token of local work and got none; without the throttle it got it",
            ),
            ("one-token-passes", r"waiting \* was held with at most one token of local work"),
        ),
        until=(0, 24),
    ),
    Note(
        "partial-resume-held",
        "A remote resume that still has more than one token of its prompt to compute is held.",
        "deliberate",
        "Since 0.25.0 (PR 46532) local work decides, whether or not some of the KV came from a remote store. The "
        "invariant asks more: what was loaded keeps its blocks while it waits, so letting it go on frees them sooner.",
        (
            ("resume-bypasses", r"\*(, a)? remote resume with # loaded tokens, was held"),
            ("resume-bypasses", r"remote resume \* with more than one token of local work got nothing.*"),
        ),
        since=(0, 25),
    ),
    Note(
        "full-resume-held",
        "A remote resume with one token of work is held itself.",
        "a side effect",
        "The last token of a prompt that was loaded whole is computed again. If the prompt has one token, nothing "
        "counts as computed, and 0.24.0 holds what has nothing computed.",
        (
            ("resume-bypasses", r"\*(, a)? remote resume with # loaded tokens, was held"),
            ("resume-bypasses", r"remote resume \* with one token of local work got nothing; .* it got tokens"),
            ("one-token-passes", r"remote resume \* has one token of local work .* it got it"),
            ("one-token-passes", r"remote resume \* was held with at most one token of local work"),
        ),
    ),
    Note(
        "decode-evicts-itself",
        "A throttled step holds a prefill chunk because of a decode that then gets no block for its next token and "
        "preempts itself: the step is empty, although the chunk could have run.",
        "unintended",
        "The step decides to hold before it knows whether a decode will get its block.",
        (("no-empty-step", r"nothing scheduled \(\* preempted itself\).*"),),
    ),
    Note(
        "throttle-evicts",
        "A throttled step preempts a request that would have run without the throttle.",
        "a side effect",
        "A held request keeps its place in the list, and a decode behind it that needs a block takes it from the "
        "last request.",
        (("throttle-never-evicts", r".*"),),
    ),
    Note(
        "loads-not-reserved",
        "A prefill is admitted although its blocks, together with those that a load in flight still needs, exceed "
        "the free blocks: the second of the two cannot finish without a preemption.",
        "a side effect",
        "Only the start of a remote load reserves the blocks that running prefills still need; the admission of a "
        "prefill reserves nothing for loads. Preemption resolves it, and some work is done twice.",
        (
            ("full-sequence-fits", r"after admitting .* blocks are promised and # free"),
            ("full-sequence-fits", r"# blocks are promised and # free.*"),
        ),
    ),
    Note(
        "victim-last-admitted",
        "The victim of a preemption is the request that was admitted last, which may be older than the request that "
        "needs the blocks.",
        "deliberate",
        "First come first served preempts from the end of the running list, which is in order of admission; a load "
        "that took long, or a resume, is admitted late.",
        (("oldest-finishes", r"\* was preempted for the younger \*"),),
    ),
    Note(
        "only-holder-preempted",
        "The only request that holds blocks is preempted.",
        "unintended",
        "Blocks of a request that ended with a step in flight come back only when that step is back; until then they "
        "count as used, and a decode that needs one preempts itself.",
        (("oldest-finishes", r"\*, the only request with blocks, was preempted"),),
    ),
    Note(
        "priority-deadlock",
        "Priority scheduling: a resume that holds blocks waits behind a better request that needs more blocks than are "
        "left, and that one waits for the resume's blocks. Nothing runs any more.",
        "unintended",
        "Up to 0.30 the scan ends at the better request if its blocks are not free, and never reaches the one that "
        "holds them. From 0.31.0 on requests that hold blocks are considered first.",
        (
            ("progress", r"# steps in a row did nothing though work is there"),
            ("progress", r".* never ended, though nothing kept the rank from working"),
        ),
        until=(0, 30),
    ),
    Note(
        "order-of-holders",
        "A fresh prefill is admitted before an older or better one.",
        "a side effect",
        "A preempted request goes to the front of the queue whatever its age; from 0.31.0 on a request whose load "
        "failed also keeps its place among those that hold blocks, which are looked at first.",
        (
            ("order-kept", r"fresh prefill \* was admitted before the older \*"),
            ("order-kept", r"those left waiting .*"),
        ),
    ),
    Note(
        "placeholders-kept",
        "A preempted request keeps the count of the token that is in flight for it.",
        "deliberate",
        "Up to 0.30 that token is still delivered, and the count goes down when it comes. From 0.31.0 on the count is "
        "cleared at once, and what is in flight is called stale.",
        (("evicted-is-out", r"\* was preempted and keeps counts of its lost KV"),),
    ),
    Note(
        "stale-output-dropped",
        "A token that was in flight for a request when it was preempted is not delivered.",
        "deliberate",
        "From 0.31.0 on, where a connector hands KV over, the output is dropped, and the token sampled again.",
        (("exactly-once", r"\* was delivered \[\]; sampled was \[#\]"),),
        since=(0, 31),
    ),
    Note(
        "victim-frees-late",
        "A request is preempted for another and frees no blocks: they come back only with the step in flight. The "
        "next victim follows, until the request that needed a block preempts itself.",
        "unintended",
        "Asynchronous scheduling with a KV connector, up to 0.30. From 0.31.0 on no request is preempted whose "
        "blocks are not free at once.",
        (("victim-can-pay", r"\* was preempted for \* and released nothing"),),
    ),
)
SEEN: dict[int, tuple[str, str]] = {
    1: ("0.25.0 to 0.33.0", "a ready resume with work left, queued first, blocks a ready full resume when throttled"),
    2: ("0.24.0 to 0.30.0", "priority: a fresh prefill of better priority blocks a ready remote resume when throttled"),
    3: ("all, asynchronous", "the one decode is finished and not yet acknowledged; a throttled step is empty"),
    4: ("all", "a ready resume that is out of budget on an open step does not raise the flag"),
    5: ("0.32.0 on", "pausing new requests raises the flag though nothing is saturated"),
    6: ("0.33.0", "all slots taken and only blocked requests waiting raises the flag"),
}
"""The findings that were known before the audit looked: releases, and what."""
NOT_SHOWN: dict[int, str] = {
    6: "On none of these releases does a loading request raise the flag: up to 0.30 it waits in a separate queue, and "
    "from 0.31.0 on it is in the set that the flag leaves out while it loads, whether or not slots are left. With "
    "all slots taken, the flag is raised by a request whose load has not begun, because the scan ends for lack of a "
    "slot before it reaches that request. Such a request does lack a slot, and the invariant asks for the flag."
}
"""Why one of them is not shown."""


def note_for(invariant: str, way: str, version: tuple[int, int]) -> Note | None:
    """Return the first note that speaks of a way of violating an invariant."""
    for note in NOTES:
        if note.since <= version <= note.until and place_of(note, invariant, way) is not None:
            return note
    return None


def place_of(note: Note, invariant: str, way: str) -> int | None:
    """Return the place of a way among those of a note; None: it has none."""
    fits = [id == invariant and _fits(form, way) for id, form in note.ways]
    return fits.index(True) if True in fits else None


def _fits(form: str, way: str) -> bool:
    """Whether a way has a form; the article, too, may have been taken for a name."""
    return re.fullmatch(re.sub(r"\ba\b", r"(?:a|\\*)", form), way) is not None
