"""Findings of several audits, put together: one for each note, and for each way that no note speaks of."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onbeat_proofs.audit.findings import kind_of
from onbeat_proofs.audit.results import Finding
from onbeat_proofs.audit.vllm.testfile import test_file
from onbeat_proofs.play.keeps_text import RULES
from onbeat_proofs.scenarios.files import load_text
from onbeat_spec.catalogue import CATALOGUE
from tools.findings_notes import NOTES, Note, note_for, place_of
from tools.findings_targets import Target

ORDER = (*RULES, *CATALOGUE)


def number(version: str) -> tuple[int, int]:
    """Return major and minor of a release."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def way_of(finding: Mapping[str, Any]) -> str:
    """Return a finding's message without names and numbers."""
    return kind_of(finding["message"], load_text(finding["scenario"])[0])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def pytest_file(target: Target, finding: Mapping[str, Any]) -> str | None:
    """Return the text of a pytest file that shows a finding, if there can be one."""
    scenario = load_text(finding["scenario"])[0]
    values = Finding(finding["invariant"], finding["message"], finding["step"], finding["check"], scenario, "")
    module, _, name = target.cls.partition(":")
    return test_file(values, module, name, target.vllm)


@dataclass(slots=True)
class Shown:
    """One finding, on all classes that show it."""

    name: str
    note: Note | None
    found: list[tuple[Target, dict[str, Any]]] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """What is wrong."""
        if self.note is not None:
            return self.note.sentence
        message = str(self.found[0][1]["message"])
        return f"{message[:1].upper()}{message[1:]}."

    @property
    def judgement(self) -> str:
        """Whether it is meant; empty: nobody has said yet."""
        return "" if self.note is None else self.note.judgement

    @property
    def invariants(self) -> list[str]:
        """Ids of all invariants that it violates."""
        own = {finding["invariant"] for _, finding in self.found}
        return sorted(own, key=ORDER.index)

    @property
    def _best(self) -> tuple[Target, dict[str, Any]]:
        """The smallest run on the newest release; one that is a file if there is one."""

        def rank(pair: tuple[Target, dict[str, Any]]) -> tuple[Any, ...]:
            target, finding = pair
            steps = len(load_text(finding["scenario"])[0].steps)
            place = place_of(self.note, finding["invariant"], way_of(finding)) if self.note is not None else 0
            file = pytest_file(target, finding) is not None
            return number(target.vllm), file, -(place or 0), -steps, not target.asynchronous

        return max(self.found, key=rank)

    @property
    def smallest(self) -> dict[str, Any]:
        """The run that is shown."""
        return self._best[1]

    @property
    def where(self) -> str:
        """The class on which it is shown."""
        target = self._best[0]
        return f"vLLM {target.vllm}'s `{target.cls.rpartition(':')[2]}`"

    @property
    def labels(self) -> list[str]:
        """The classes that show it, by release."""
        classes: dict[str, list[str]] = {}
        for target, _ in self.found:
            names = classes.setdefault(target.vllm, [])
            name = "async" if target.asynchronous else "sync"
            if name not in names:
                names.append(name)
        return [
            version if len(names) == 2 else f"{version} ({names[0]})"
            for version, names in sorted(classes.items(), key=lambda item: number(item[0]))
        ]

    @property
    def messages(self) -> list[tuple[str, str, list[str]]]:
        """For each way its invariant, the message of its first run, and the classes that show it."""
        ways: dict[tuple[str, str], Shown] = {}
        for target, finding in self.found:
            way = ways.setdefault((finding["invariant"], way_of(finding)), Shown(finding["message"], self.note))
            way.found.append((target, finding))
        return [(invariant, way.name, way.labels) for (invariant, _), way in ways.items()]

    @property
    def file_names(self) -> list[str]:
        """Names of the scenario file, and of the pytest file if there is one."""
        test = [f"test_{self.name.replace('-', '_')}.py"] if pytest_file(*self._best) else []
        return [f"{self.name}.yaml", *test]

    def files(self, folder: Path) -> Iterator[Path]:
        """Write the files of the run that is shown; yield them."""
        texts = (self.scenario_file, pytest_file(*self._best) or "")
        for name, text in zip(self.file_names, texts, strict=False):
            path = folder / name
            path.write_text(text, encoding="utf-8")
            yield path

    @property
    def scenario_file(self) -> str:
        """The scenario under a name of its own: the files of a folder are a suite."""
        text: str = self.smallest["scenario"]
        cls = self._best[0].cls
        return re.sub(r"^name: .*$", f"name: '{self.name}: {cls}'", text, count=1, flags=re.MULTILINE)

    def verdict(self, target: Target, verdicts: Mapping[str, str]) -> str:
        """Return what is known of it on a class, given that class's verdicts on the invariants."""
        if any(violating == target for violating, _ in self.found):
            return "violated"
        invariants = {id for id, _ in self.note.ways} if self.note is not None else set(self.invariants)
        mine = {verdicts[id] for id in invariants if id in verdicts}
        for verdict, label in (("violated", "not seen"), ("undecided", "undecided"), ("holds", "holds")):
            if verdict in mine:
                return label
        return "vacuous"


def shown_by(targets: Sequence[Target], results: Mapping[str, Any]) -> list[Shown]:
    """Put the findings of these classes together, in the order of the notes; those without one come last."""
    with_note: dict[str, Shown] = {}
    without: dict[tuple[str, str], Shown] = {}
    for target in targets:
        report = results[target.label]["report"]
        for finding in report["findings"] if report is not None else ():
            id, way = finding["invariant"], way_of(finding)
            note = note_for(id, way, number(target.vllm))
            if note is not None:
                with_note.setdefault(note.id, Shown(note.id, note)).found.append((target, finding))
                continue
            other = without.get((id, way))
            if other is None:
                count = sum(known_id == id for known_id, _ in without) + 1
                other = without[id, way] = Shown(f"{id}-{count}", None)
            other.found.append((target, finding))
    return [*(with_note[note.id] for note in NOTES if note.id in with_note), *without.values()]
