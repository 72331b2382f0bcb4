"""The drawing of a run, read back as XML."""

from xml.etree.ElementTree import Element, fromstring

from onbeat_proofs.audit.reports.lanes import LONGEST_NAME, MOST_STEPS, STEPS_AFTER, lanes
from onbeat_proofs.play.timeline import STATES
from tests.proofs.audit.reports.examples import cell, record


def drawn(html: str) -> Element:
    return fromstring(f"<div>{html}</div>")


def classes(html: str) -> list[str]:
    return [element.attrib["class"] for element in drawn(html).iter("rect")]


def texts(html: str, kind: str) -> list[str]:
    return [t.text or "" for t in drawn(html).iter("text") if kind in t.attrib["class"].split()]


def test_every_state_is_drawn() -> None:
    records = [record(0, {f"r{at}": cell(state, tokens=at) for at, state in enumerate(STATES)})]
    html = lanes(records, 0, "k", "t")
    assert set(STATES) - {"finished"} <= set(classes(html))
    assert len(list(drawn(html).iter("circle"))) == 1
    assert texts(html, "lane-name") == [f"r{at}" for at in range(len(STATES))]


def test_tokens_drafts_and_evictions() -> None:
    records = [
        record(0, {"a": cell("prefill", 8192), "b": cell("decode", 4, 3), "c": cell("decode", 1, preempted=True)}),
        record(1, {"a": cell("prefill", 131_072), "b": cell("held"), "c": cell("preempted", preempted=True)}),
    ]
    html = lanes(records, 1, "k", "t")
    assert texts(html, "in") == ["8192", "131k", "1+3", "H", "1", "P"]
    assert [p.attrib["class"] for p in drawn(html).iter("path")] == ["evicted"]
    titles = [title.text for group in drawn(html).iter("g") for title in group.iter("title")]
    assert "step 0, b: decode, 4 tokens, 3 of them drafts" in titles
    assert "step 0, c: decode, 1 token, preempted in the same step" in titles
    assert "step 1, c: preempted" in titles


def test_the_strips() -> None:
    records = [
        record(0, {}, throttle=True),
        record(1, {}, throttle=True, hold=True, saturated=True),
        record(2, {}, throttle=True, hold=True, lifted=True),
        record(3, {}),
    ]
    html = lanes(records, 3, "k", "t")
    assert classes(html)[1:] == ["throttle", "hold", "lifted", "off", "off", "saturated", "off", "off"]
    assert texts(html, "strip-name") == ["throttle", "saturated"]
    paused = lanes([record(0, {}, open=False)], 0, "k", "t")
    assert texts(paused, "strip-name") == ["throttle", "saturated", "paused"]
    assert classes(paused)[-1] == "paused"


def test_the_violating_step_is_marked_and_said() -> None:
    html = lanes([record(at, {"a": cell("waiting")}) for at in range(3)], 1, "k", "Title & more")
    assert classes(html).count("violating") == 1
    (drawing,) = [svg for svg in drawn(html).iter("svg") if svg.attrib.get("role") == "img"]
    title, desc = drawing[0], drawing[1]
    assert drawing.attrib["aria-labelledby"] == f"{title.attrib['id']} {desc.attrib['id']}"
    assert title.text == "Title & more"
    assert desc.text == "1 request over steps 0 to 2. Step 1, which violates the invariant: a waiting."


def test_a_long_run_is_cut_and_says_so() -> None:
    records = [record(at, {"a": cell("decode", 1)}) for at in range(1000)]
    html = lanes(records, 900, "k", "t")
    numbers = [int(text) for text in texts(html, "number")]
    assert numbers == list(range(901 - MOST_STEPS, 901 + STEPS_AFTER))
    assert f"Drawn: {len(numbers)} of the 1000 steps" in html
    assert "Drawn:" not in lanes(records[:5], 4, "k", "t")


def test_who_comes_later_than_what_is_drawn_has_no_lane() -> None:
    records = [record(at, {f"r{at}": cell("waiting")}) for at in range(50)]
    assert texts(lanes(records, 1, "k", "t"), "lane-name") == [f"r{at}" for at in range(2 + STEPS_AFTER)]


def test_a_long_or_hostile_id_stays_in_its_column() -> None:
    html = lanes([record(0, {"<b>" + "x" * 60: cell("waiting")})], 0, "k", "t")
    (name,) = texts(html, "lane-name")
    assert len(name) <= LONGEST_NAME
    assert "<b>" not in html


def test_a_run_that_crashed_at_once() -> None:
    assert lanes([], 0, "k", "t") == '<p class="note">No step came to its end.</p>'
