"""What the scheduler's benchmark prints and writes."""

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._chunks import ChunkRow
from benchmarks._measure import DEFAULT_LOOKS, Effort, Search, Shape, Times, Watching


class Row(NamedTuple):
    """The result for one shape."""

    shape: Shape
    onbeat: Times
    vllm: Times | None
    watching: Watching

    @property
    def ratio(self) -> float | None:
        """How many of our steps fit into one of vLLM's."""
        return None if self.vllm is None else self.vllm.both_us / self.onbeat.both_us

    @property
    def monitor_us(self) -> float:
        """Microseconds that the monitor adds to a step, its looks at the whole state spread over the steps between."""
        return self.watching.step_us + (self.watching.whole_us - self.watching.step_us) / DEFAULT_LOOKS

    @property
    def monitor_share(self) -> float:
        """The same in percent of a step that nobody watches."""
        return 100 * self.monitor_us / self.onbeat.both_us


def scheduler_table(rows: Sequence[Row], vllm: str | None) -> Table:
    """Lay out the comparison."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    headings = ["decodes", "prefix\ncache", "\nschedule", "onbeat\nupdate", "\nboth"]
    if vllm is not None:
        headings += ["\nschedule", f"vLLM {vllm}\nupdate", "\nboth", "vLLM /\nonbeat"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row.shape.decodes), switch(row.shape), *map(figure, row.onbeat)]
        if row.vllm is not None:
            cells += [*map(figure, row.vllm), f"{row.ratio:.1f}"]
        table.add_row(*cells)
    return table


def chunk_table(rows: Sequence[ChunkRow], vllm: str | None) -> Table:
    """Lay out the comparison of steps of chunks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    headings = ["\nchunks", "\nonbeat", "counting for\neach chunk", "counting /\nonbeat"]
    if vllm is not None:
        headings += [f"vLLM\n{vllm}", "vLLM /\nonbeat"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [str(row.chunks), figure(row.onbeat_us), figure(row.recounts_us), f"{row.cheaper:.1f}"]
        if row.vllm_us is not None:
            cells += [figure(row.vllm_us), f"{row.ratio:.1f}"]
        table.add_row(*cells)
    return table


def monitor_table(rows: Sequence[Row]) -> Table:
    """Lay out what watching costs."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    for heading in (
        "decodes",
        "prefix\ncache",
        "most\nsteps",
        f"one step\nin {DEFAULT_LOOKS}",
        "on\naverage",
        "in % of\nschedule + update",
    ):
        table.add_column(heading, justify="right")
    for row in rows:
        figures = map(figure, (*row.watching, row.monitor_us))
        table.add_row(str(row.shape.decodes), switch(row.shape), *figures, f"{row.monitor_share:.1f}")
    return table


def switch(shape: Shape) -> str:
    """Say whether prefix caching is on."""
    return "on" if shape.prefix_caching else "off"


def figure(microseconds: float) -> str:
    """Write a duration with as many digits as mean something."""
    return f"{microseconds:,.1f}" if microseconds < 100 else f"{microseconds:,.0f}"


def machine(load: float, cpus: int) -> str:
    """Describe where this runs, and warn if other jobs run there too."""
    text = f"Python {platform.python_version()}, {cpus} CPUs, load {load:.1f}\n"
    if load > cpus / 2:
        text += "Other jobs run here. Long steps lose more to them than short ones, so large ratios are too large.\n"
    return text


def show(rows: Sequence[Row], chunk_rows: Sequence[ChunkRow], vllm: str | None, search: Search) -> None:
    """Print everything."""
    console = Console()
    print("Scheduler: median microseconds of a step of n decodes")
    console.print(scheduler_table(rows, vllm))
    if vllm is None:
        print("To compare with vLLM, give --vllm-python PATH or set ONBEAT_VLLM_PYTHON: a Python that has it.\n")
    else:
        print("vLLM's step also makes the worker's input and the clients' messages, and caches a block as soon as")
        print("it is full; onbeat caches the blocks of a decode when the request ends.\n")
    print("Chunks: median microseconds of schedule() and update() while n prompts are computed in chunks")
    console.print(chunk_table(chunk_rows, vllm))
    print("Monitor: median microseconds that it adds to such a step")
    console.print(monitor_table(rows))
    print(
        f"Search: {search.steps:,} checked steps in {search.seconds:.1f} s, {search.steps / search.seconds:,.0f} per "
        f"second ({search.scopes} small worlds)."
    )


def as_json(
    rows: Sequence[Row], chunk_rows: Sequence[ChunkRow], vllm: str | None, search: Search, effort: Effort
) -> dict[str, Any]:
    """Return everything as values of JSON. Figures in `_us` are microseconds per step."""
    return {
        "onbeat": version("onbeat"),
        "vllm": vllm,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        **{name: value for name, value in effort._asdict().items() if name != "operations"},
        "rows": [row_json(row) for row in rows],
        "chunks": [{**row._asdict(), "cheaper": row.cheaper, "ratio": row.ratio} for row in chunk_rows],
        "search": {**search._asdict(), "steps_per_s": search.steps / search.seconds},
    }


def row_json(row: Row) -> dict[str, Any]:
    """Return one row as values of JSON."""
    return {
        **row.shape._asdict(),
        "onbeat": row.onbeat._asdict(),
        "vllm": None if row.vllm is None else row.vllm._asdict(),
        "ratio": row.ratio,
        "monitor": {
            **row.watching._asdict(),
            "whole_every": DEFAULT_LOOKS,
            "average_us": row.monitor_us,
            "share_percent": row.monitor_share,
        },
    }
