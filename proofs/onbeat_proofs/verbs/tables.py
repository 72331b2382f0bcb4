"""Tables and the console that the verbs about the protocol print them on."""

import sys

from rich.console import Console
from rich.table import Table

WIDTH = 130
"""Columns that the tables need, where no terminal says how many there are."""


def wide_console() -> Console:
    """Return a console that is as wide as the tables where no terminal says otherwise: logs are not wrapped."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def plain_table(*columns: str) -> Table:
    """Return a table without lines; numbers are aligned right, and only long texts may wrap."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        right = column in ("states", "moves", "depth", "time")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=column not in ("fault", "every state of")
        )
    return table


def mark(good: bool, text: str) -> str:
    """Return the text in the markup of a good or a bad result."""
    return f"[green]{text}[/]" if good else f"[bold red]{text}[/]"
