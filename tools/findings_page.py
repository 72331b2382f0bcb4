"""docs/findings.md, from what audits left."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.findings_targets import Target


def write(docs: Path, targets: Sequence[Target], known: Mapping[str, Any]) -> Iterator[Path]:
    """Write the document and what it links to; yield the files."""
    yield from ()
