"""The process of one rank: `python -m onbeat_engine.rank`.

A child of the front end is told what to do by one line of JSON on its standard input. That stays open as long as the
front end lives: its end, for whatever reason, is the end of the rank too.

With `--connect tcp://host:port` it is a rank that somebody else starts (torchrun, on another machine): its number is in
the environment variable RANK, and it asks the front end there for everything else, so that ranks cannot disagree.
"""

import argparse
import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from onbeat_engine.parallel.heart import Heart
from onbeat_engine.rank.channel import Channel
from onbeat_engine.rank.core import EngineCore
from onbeat_engine.rank.parts import resolve
from onbeat_engine.wire.handshake import HEARTBEAT, RankSpec, identity
from onbeat_engine.wire.messages import Ended, Ready, Shutdown
from onbeat_spec.errors import OnbeatError

log = logging.getLogger("onbeat.process")

POLL = 0.01
"""Seconds between two looks at what is being compiled, while there is nothing else to do."""
ALONE = 15.0
"""A rank that somebody else has started ends when it has not heard of the front end for so many seconds."""


def serve(spec: RankSpec, channel: Channel, *, child: bool = True) -> int:
    """Be a rank until told to end; return the exit code.

    Args:
        spec: what it is to do.
        channel: to the front end; closed at the end.
        child: the front end has started this process.
    """
    heart: Heart | None = None
    # Before torch is imported, which reads it. One core is the front end's: threads that share one wait for each other.
    threads = ((os.cpu_count() or 1) - 1) // spec.config.data_parallel_size
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    try:
        core, on_cpu = _built(spec, channel)
        if core is None:
            return 1
        if on_cpu:
            exchange, timeout = core.exchange, spec.config.collective_timeout
            heart = Heart(lambda: channel.beat_beside(spec.rank, spec.epoch), timeout, vouched=lambda: exchange.vouched)
        _loop(core, channel, child, heart)
        core.exchange.close()
        return 1 if core.failed else 0
    finally:
        if heart is not None:
            heart.stop()
        channel.close()


def _built(spec: RankSpec, channel: Channel) -> tuple[EngineCore | None, bool]:
    """Build the rank; return it, or None if that failed, and whether its steps run on the CPU."""
    try:
        built = resolve(spec.build)(spec.config, spec.rank)
        core = EngineCore(spec.config, built, rank=spec.rank, epoch=spec.epoch, group=spec.group)
    except OnbeatError as error:
        channel.send(Ended(rank=spec.rank, why=str(error)))
        return None, False
    except Exception as error:
        log.exception("rank %d cannot start", spec.rank)
        channel.send(Ended(rank=spec.rank, why=f"{type(error).__name__}: {error}"))
        return None, False
    channel.send(
        Ready(
            rank=spec.rank,
            num_blocks=built.num_blocks,
            max_model_len=built.max_model_len,
            pid=os.getpid(),
            vocab_size=built.vocab_size,
            coupled=core.coupled,
        )
    )
    return core, built.on_cpu


def _loop(core: EngineCore, channel: Channel, child: bool, heart: Heart | None) -> None:
    """Read all that has arrived, take a turn, send; wait where there is no turn."""
    channel.heard = time.monotonic()
    while not core.ended:
        if heart is not None:
            heart.turn_begins()
        while (message := channel.receive()) is not None:
            if isinstance(message, Shutdown):
                core.shut_down()
            else:
                core.read(message)
        if not child and time.monotonic() - channel.heard > ALONE:
            log.error("rank %d ends: the front end is gone", core.rank)
            core.shut_down("the front end is gone")
            core.failed = True  # whoever started it may want to start it again
        busy = core.turn()
        for report in core.take(idle=not busy):
            channel.send(report)
        if heart is not None:
            heart.turn_ended()
        channel.beat(core.rank)
        if not busy and not core.ended:
            channel.wait(POLL if core.compiling.busy else HEARTBEAT)


def _end_with_parent(address: str) -> None:
    """End the process when the front end is gone, whatever the loop is doing; remove what it left on the disk."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1024):
                pass
        time.sleep(1.0)  # an orderly end is under way, or none will come
        if address.startswith("ipc://"):
            shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a rank."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(prog="python -m onbeat_engine.rank", description="One rank of an engine.")
    parser.add_argument("--connect", metavar="ADDRESS", help="where the front end listens, such as tcp://host:port")
    address = parser.parse_args(arguments).connect
    # It keeps code for every shape of matrix, and each step has another one; the shapes of one step fit into this.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front end's, which then ends us in order
    if address is None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # likewise: service managers send it to all processes
        spec = _read_spec()
        if spec is None:
            return 1
        _end_with_parent(spec.address)
        return serve(spec, Channel(spec.address, identity(spec.rank, spec.group)))
    if not os.environ.get("RANK", "").isdecimal():
        parser.error("the environment variable RANK must be the number of this rank; torchrun sets it")
    rank = int(os.environ["RANK"])
    try:
        asking = Channel(address, None)
        try:
            spec = asking.ask(rank)
        finally:
            asking.close()
    except OnbeatError as error:
        parser.error(str(error))
    return serve(spec, Channel(address, identity(rank, spec.group)), child=False)


def _read_spec() -> RankSpec | None:
    """Read what the front end has to say; None: it is gone."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return None
        line += byte
    return msgspec.json.decode(line, type=RankSpec)


def run() -> None:
    """Run a rank, and end the process as soon as it and whoever else wanted to be called at the end are done.

    What Python would do then takes half a second of processor time once torch is imported, while somebody waits for
    the end; nothing of it is needed.
    """
    code: list[int] = []

    def end() -> None:
        if code:
            logging.shutdown()
            with contextlib.suppress(OSError, ValueError):  # whoever read them is gone
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code[0])

    atexit.register(end)  # the first to be registered is called last
    code.append(main())
    sys.exit(code[0])
