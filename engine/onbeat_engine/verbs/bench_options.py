"""What the verbs of `onbeat bench` share."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

FILE = click.Path(dir_okay=False, path_type=Path)


def write_json(path: Path, numbers: Mapping[str, Any]) -> None:
    """Write numbers as JSON, and say so."""
    path.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    click.echo(f"wrote {path}")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show how far it is, on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        yield shown
