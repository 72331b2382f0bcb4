"""The page: what it says, and that it loads nothing."""

import re
from html import unescape
from html.parser import HTMLParser

from onbeat_proofs.audit.reports.html import page
from tests.proofs.audit.reports.examples import HOSTILE, NOW, everything, half_allocation

VOID = {"meta", "wbr", "br"}


class Reader(HTMLParser):
    """Checks that elements nest, and collects ids, links and what is loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.referred: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.loaded += [value for name, value in given.items() if name in ("src", "srcset", "data", "action")]
        self.referred += [id for name in ("aria-labelledby", "data-copy") for id in given.get(name, "").split()]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page(everything(), NOW)
    reader = Reader(text)
    assert len(reader.ids) == len(set(reader.ids))
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    assert set(reader.referred) <= set(reader.ids)
    assert reader.loaded == []
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in unescape(text)


def test_nothing_that_a_class_says_becomes_markup() -> None:
    text = page(everything(), NOW)
    assert Reader(text).tags.count("script") == 1
    assert HOSTILE not in text
    assert "alert(&#x27;&amp;&#x27;)" in text


def test_the_page_says_what_was_audited_and_what_came_of_it() -> None:
    text = re.sub(r"<[^>]*>", "", page(everything(), NOW))
    for said in (
        "mine:Mine",
        "0.33.0",
        "2026-01-02 03:04 UTC",
        "Something is violated.",
        "4 invariants: 1 violated, 1 vacuous, 1 undecided, 1 hold",
        "Does it keep the policy text of its version?",
        "Which invariants does it violate?",
        "never put to the test",
        "missing throttle flag",
        "beside the rows",
        "def test_it(): ...",
    ):
        assert said in unescape(text)


def test_a_finding_has_its_scenario_and_its_drawing() -> None:
    report = half_allocation()
    (finding,) = report.findings
    text = page(report, NOW)
    assert f'<a href="#finding-{finding.invariant}">' in text
    assert finding.yaml in unescape(text)
    assert finding.table in unescape(text)
    assert 'class="violating"' in text


def test_a_clean_class_has_a_plain_page() -> None:
    report = half_allocation()
    clean = type(report)("mine:Mine", "onbeat", "quick", 0, suite=report.suite)
    text = page(clean, NOW)
    assert "Every invariant holds." in text
    assert "Nothing was found." in text
    assert "legend" not in text.partition("</style>")[2]
