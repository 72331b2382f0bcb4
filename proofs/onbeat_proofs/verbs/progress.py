"""The progress bar of a verb: on standard error, only in a terminal, and gone when the verb is done."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes what is being done, how much of it is done, and how much there is."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
