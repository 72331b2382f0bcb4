"""Trace files on disk: bounded, rotating, and whole up to their last line also when the process is killed.

A recorder must never harm what it records: no call here raises. What could not be written is counted, said once in the
log, and told in the header of the next file.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onbeat_spec.errors import ConfigError
from onbeat_spec.trace import Header, Record, StepRecord
from onbeat_spec.trace_write import line

log = logging.getLogger("onbeat.trace")

RETRY = 1000
"""Records that are given up before a failed writer tries again."""
MOST_PENDING = 1 << 20
"""Bytes that wait in memory for the next write, whatever `flush_every` says."""
VARIABLES = {
    "max_bytes": "ONBEAT_TRACE_MAX_BYTES",
    "max_files": "ONBEAT_TRACE_MAX_FILES",
    "flush_every": "ONBEAT_TRACE_FLUSH_EVERY",
    "audit_every": "ONBEAT_TRACE_AUDIT_EVERY",
}
"""Environment variables of the options that are numbers. ONBEAT_TRACE_DIR is the folder, ONBEAT_TRACE_FSYNC 0 or 1."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Where a trace goes, and how much of it is kept.

    Raises:
        ConfigError: a number is below 1.
    """

    folder: str
    max_bytes: int = 64 << 20
    """A file that has reached so many bytes is the last but one."""
    max_files: int = 8
    """Files kept of one rank in the folder, those of earlier runs counted; the oldest is deleted."""
    flush_every: int = 1
    """Steps between two writes; 1: every record is written at once. A process that is killed loses what was not."""
    fsync: bool = False
    """Wait for the disk after every write: then also a machine that loses power keeps what was written."""
    audit_every: int = 256
    """Steps between two whole states."""

    def __post_init__(self) -> None:
        for name in VARIABLES:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of the trace is {getattr(self, name)}; it must be at least 1")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "TraceOptions | None":
        """Return what the environment variables say; None without ONBEAT_TRACE_DIR.

        Raises:
            ConfigError: one is no number.
        """
        environ = os.environ if environ is None else environ
        folder = environ.get("ONBEAT_TRACE_DIR")
        if not folder:
            return None
        numbers: dict[str, int] = {}
        for name, variable in VARIABLES.items():
            if text := environ.get(variable):
                if not text.isascii() or not text.isdigit():
                    raise ConfigError(f"{variable} is {text!r}; it must be a number, 1 or more")
                numbers[name] = int(text)
        fsync = environ.get("ONBEAT_TRACE_FSYNC", "0")
        if fsync not in ("0", "1"):
            raise ConfigError(f"ONBEAT_TRACE_FSYNC is {fsync!r}; it must be 0 or 1")
        return cls(folder, fsync=fsync == "1", **numbers)


class TraceWriter:
    """Writes the records of one scheduler. Call `write` right after what it records, before anything else happens.

    Args:
        options: where, and how much.
        rank: names the files.
        header: makes the header of a file from the run's name, the file's number, and the records lost before it;
            it looks at the scheduler as it stands.

    Attributes:
        errors: writes that failed.
        lost: records that were not written since.
        path: the file that is written; None after an error.
    """

    def __init__(self, options: TraceOptions, rank: int, header: Callable[[str, int, int], Header]) -> None:
        self.options = options
        self.rank = rank
        self.run = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}-{os.urandom(3).hex()}"
        self.errors = 0
        self.lost = 0
        self.path: Path | None = None
        self._header = header
        self._began = time.monotonic()
        self._descriptor = -1
        self._part = 0
        self._size = 0
        self._max_tokens = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._steps = 0
        self._wait = 0
        self._begin()

    def write(self, record: Record) -> None:
        """Append a record; never raises."""
        if self._descriptor < 0:
            self.lost += 1
            self._wait -= 1
            if self._wait <= 0:
                self._begin()
            return
        try:
            text = line(record, self._max_tokens).encode("ascii")
        except Exception as error:  # whatever a scheduler put into its records, it goes on
            self._fail(error, 1)
            return
        self._pending.append(text)
        self._pending_bytes += len(text)
        self._steps += isinstance(record, StepRecord)
        due = self.options.flush_every == 1 or self._steps >= self.options.flush_every
        if due or self._pending_bytes >= MOST_PENDING:
            self.flush()
            if self._size >= self.options.max_bytes and self._descriptor >= 0:
                self._end()
                self._begin()

    def now(self) -> float:
        """Return the seconds since the present file was begun, as its records have them."""
        return round(time.monotonic() - self._began, 5)

    def flush(self) -> None:
        """Hand what is pending to the operating system; never raises."""
        if not self._pending or self._descriptor < 0:
            return
        try:
            self._put(b"".join(self._pending))
        except Exception as error:
            self._fail(error, 0)
            return
        self._pending.clear()
        self._pending_bytes = self._steps = 0

    def close(self) -> None:
        """Write what is pending, and end; what comes after is lost."""
        self.flush()
        self._end()
        self._wait = 1 << 62

    def __del__(self) -> None:
        if hasattr(self, "_wait"):  # else it was never set up
            self.close()

    def _put(self, text: bytes) -> None:
        rest = memoryview(text)
        while rest:
            written = os.write(self._descriptor, rest)
            self._size += written
            rest = rest[written:]
        if self.options.fsync:
            os.fsync(self._descriptor)

    def _begin(self) -> None:
        """Start the next file, as things stand now."""
        path: Path | None = None
        try:
            folder = Path(self.options.folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._began = time.monotonic()
            header = self._header(self.run, self._part, self.lost)
            path = folder / f"{self.run}-rank{self.rank}-{self._part:06d}.ndjson"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            self.path, self._size, self._max_tokens = path, 0, header.config.max_num_batched_tokens
            self._part += 1
            self._put(line(header, 0).encode("ascii"))
            self.lost = 0
        except Exception as error:
            self._fail(error, 0)
            if path is not None:  # half a header is of no use to anybody
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            return
        with suppress(OSError):  # a file too many does no harm
            self._prune(folder)

    def _prune(self, folder: Path) -> None:
        """Delete the oldest files of this rank; their names sort by age."""
        kept = sorted(path.name for path in folder.glob(f"*-rank{self.rank}-*.ndjson"))
        for name in kept[: -self.options.max_files]:
            (folder / name).unlink(missing_ok=True)

    def _end(self) -> None:
        if self._descriptor >= 0:
            try:
                os.close(self._descriptor)
            except OSError as error:
                log.warning("the trace file %s could not be closed: %s", self.path, error)
            self._descriptor = -1

    def _fail(self, error: Exception, more: int) -> None:
        """Give the present file up: its last line may be half written. Another one is tried later."""
        self._end()
        self.errors += 1
        self.lost += len(self._pending) + more
        self._pending.clear()
        self._pending_bytes = self._steps = 0
        self._wait = RETRY
        if self.errors == 1:
            log.error(
                "the trace in %s cannot be written: %s: %s; scheduling goes on, and it is tried again every %d records",
                self.options.folder,
                type(error).__name__,
                error,
                RETRY,
            )
