"""An executor without a model, for tests and for measuring everything around a model.

What it samples at a position depends on all tokens before it, as read from a KV cache through the block tables, and on
the seed. So a wrong slot, a block shared by mistake or a token lost shows in the tokens, as it would with a model.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from onbeat_engine.parallel.heart import NEVER
from onbeat_engine.rank.parts import Built
from onbeat_engine.runner.executor import BatchRow, EngineRequest, StepOutputs
from onbeat_engine.text.pieces import byte_alphabet
from onbeat_engine.text.tokenizer import Tokenizer
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import TokenLogprobs
from onbeat_spec.errors import ConfigError, OnbeatError
from onbeat_spec.protocol import Agreement, Vote, tally

VOCABULARY = 256
MODULUS = (1 << 61) - 1


def chain(before: int, token: int) -> int:
    """Return what the KV of a token stands for, given that of the token before it (0: none)."""
    return (before * 1_000_003 + token * 7_919 + 12_345) % MODULUS


def sample(state: int, seed: int) -> int:
    """Return the token that follows."""
    return chain(state, seed % MODULUS) >> 7 & (VOCABULARY - 1)


def expected(prompt: Sequence[int], count: int, seed: int = 0) -> list[int]:
    """Return the first `count` tokens that follow a prompt."""
    state, tokens = 0, list[int]()
    for token in prompt:
        state = chain(state, token)
    for _ in range(count):
        tokens.append(sample(state, seed))
        state = chain(state, tokens[-1])
    return tokens


class Copied(NamedTuple):
    """A row, with its block table as of its step."""

    row: BatchRow
    blocks: tuple[int, ...]


class FakePending:
    """A step of `FakeExecutor`."""

    def __init__(self, executor: "FakeExecutor", rows: list[Copied], due: float) -> None:
        self.executor = executor
        self.rows = rows
        self.due = due

    def wait(self) -> StepOutputs:
        """Compute it; its tokens are known by now."""
        if self.due:
            time.sleep(max(0.0, self.due - time.monotonic()))
        assert self.executor.flights.popleft() is self, "steps are waited for in their order"
        outputs = StepOutputs()
        for copied in self.rows:
            self.executor.compute(copied, outputs)
        return outputs


class FakeExecutor:
    """Computes tokens as `expected` does.

    Args:
        block_size: tokens per block.
        delay: seconds that each step takes.
        fail_at: the execution with this number raises.
        die_at: the execution with this number kills the process.
        hang_at: the execution with this number never comes back.
        busy_at: the execution with this number computes for `busy` seconds.
        forward: called in every forward, dummies included (the collectives of a group).
    """

    def __init__(
        self,
        block_size: int,
        *,
        delay: float = 0.0,
        fail_at: int = -1,
        die_at: int = -1,
        hang_at: int = -1,
        busy_at: int = -1,
        busy: float = 0.0,
        forward: "LocalExchange | None" = None,
    ) -> None:
        self.block_size = block_size
        self.delay = delay
        self.fail_at, self.die_at, self.hang_at = fail_at, die_at, hang_at
        self.busy_at, self.busy = busy_at, busy
        self.group = forward
        self.flights: deque[FakePending] = deque()
        self.executed = 0
        self.dummies = 0
        self.deepest = 0
        """Most steps that were in flight at once."""
        self.released: list[str] = []
        self.asleep = False
        self._kv: dict[int, int] = {}

    def execute(self, rows: Sequence[BatchRow]) -> FakePending:
        """Begin a step."""
        assert rows, "an empty step is not executed"
        self._forward()
        copied = [Copied(row, tuple(row.blocks)) for row in rows]
        pending = FakePending(self, copied, time.monotonic() + self.delay if self.delay else 0.0)
        self.flights.append(pending)
        self.deepest = max(self.deepest, len(self.flights))
        return pending

    def dummy(self) -> int:
        """Take part in a forward."""
        self.dummies += 1
        self._forward()
        time.sleep(self.delay)
        return 0

    def release(self, request: EngineRequest) -> None:
        """A request has ended."""
        self.released.append(request.id)

    def sleep(self) -> None:
        """Lose the cache."""
        assert not self.flights, "no step is in flight when memory is given up"
        self.asleep = True
        self._kv.clear()

    def wake_up(self) -> None:
        """Take the memory back."""
        self.asleep = False

    def compute(self, copied: Copied, outputs: StepOutputs) -> None:
        """Write the KV of a row, and sample if it is to."""
        (request, start, num_tokens, samples, _), blocks, size = copied.row, copied.blocks, self.block_size
        kv = self._kv
        at = start - 1
        state = kv.get(blocks[at // size] * size + at % size, -1) if start else 0
        tokens = request.tokens
        for position in range(start, start + num_tokens):
            if position >= len(tokens):  # it ended in the step before: nobody reads this
                return
            state = chain(state, tokens[position])
            kv[blocks[position // size] * size + position % size] = state
        params = request.params
        if params.prompt_logprobs is not None:
            last = min(start + num_tokens, request.num_prompt - 1)
            outputs.prompt_logprobs[request.id] = [logprobs_of(tokens[p + 1]) for p in range(start, last)]
        if samples:
            token = sample(state, request.seed)
            outputs.tokens[request.id] = [token]
            if params.logprobs is not None:
                outputs.logprobs[request.id] = [logprobs_of(token)]

    def _forward(self) -> None:
        assert not self.asleep, "no forward while the memory is given up"
        self.executed += 1
        if self.executed == self.fail_at:
            raise RuntimeError("planted failure")
        if self.executed == self.die_at:
            os.kill(os.getpid(), 9)
        if self.executed == self.hang_at:
            threading.Event().wait()
        if self.executed == self.busy_at:
            until = time.monotonic() + self.busy
            while time.monotonic() < until:
                pass
        if self.group is not None:
            self.group.forward()


def logprobs_of(token: int) -> TokenLogprobs:
    """Return a token's log probability."""
    return TokenLogprobs(token, -1.0, 1, (token,), (-1.0,))


class LocalGroup:
    """Ranks in threads of one process.

    Args:
        size: how many.
        timeout: seconds after which a collective counts as failed.
    """

    def __init__(self, size: int, timeout: float = 5.0) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=timeout)
        self.calls: list[tuple[str, Vote | None] | None] = [None] * size

    def collective(self, rank: int, name: str, vote: Vote | None) -> list[Vote | None]:
        """Enter a collective; return what every rank brought.

        Raises:
            OnbeatError: the ranks are not in the same collective, or one of them does not come.
        """
        self.calls[rank] = (name, vote)
        try:
            self.barrier.wait()
            calls = [call for call in self.calls if call is not None]
            self.barrier.wait()  # until all have read
        except threading.BrokenBarrierError:
            raise OnbeatError(f"rank {rank} waits in {name}; another rank does not come") from None
        if {each for each, _ in calls} != {name}:
            raise OnbeatError(f"ranks are in different collectives: {[each for each, _ in calls]}")
        return [vote for _, vote in calls]


class LocalExchange:
    """One rank's end of a `LocalGroup`."""

    vouched = NEVER

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.size = group.size

    def exchange(self, vote: Vote) -> Agreement:
        """Exchange votes."""
        return tally([each for each in self.group.collective(self.rank, "exchange", vote) if each is not None])

    def forward(self) -> None:
        """Take part in the collectives of a forward."""
        self.group.collective(self.rank, "forward", None)

    def close(self) -> None:
        """Whoever waits for this rank waits no longer."""
        self.group.barrier.abort()


def backend() -> Any:
    """Return a `tokenizers.Tokenizer` whose ids are the bytes of UTF-8."""
    from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - only what has text needs it
    from tokenizers import decoders, models, pre_tokenizers  # noqa: PLC0415 - likewise

    made = Backend(models.BPE(vocab=byte_alphabet(), merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids are the bytes of UTF-8; no token ends a text."""
    return Tokenizer(backend())


def build(config: EngineConfig, rank: int) -> Built:
    """Build a rank without a model. `config.model` may name faults: `delay=0.01,die_at=20`, `rank=1,fail_at=5`."""
    faults = dict[str, float]()
    for item in (config.model or "").split(","):
        name, _, value = item.partition("=")
        if name:
            faults[name] = float(value)
    known = {"delay", "fail_at", "die_at", "hang_at", "busy_at", "busy", "rank", "load", "compile"}
    if unknown := faults.keys() - known:
        raise ConfigError(f"the fake model knows no {', '.join(sorted(unknown))}")
    time.sleep(faults.get("load", 0.0))
    here = rank == faults.get("rank", rank)
    names = ("fail_at", "die_at", "hang_at", "busy_at")
    fail_at, die_at, hang_at, busy_at = (int(faults.get(name, -1)) if here else -1 for name in names)
    executor = FakeExecutor(
        config.block_size,
        delay=faults.get("delay", 0.0),
        fail_at=fail_at,
        die_at=die_at,
        hang_at=hang_at,
        busy_at=busy_at,
        busy=faults.get("busy", 0.0),
    )
    compiling = faults.get("compile", 0.0)
    blocks, longest = config.num_gpu_blocks_override or 256, config.max_model_len or 1024
    return Built(executor, blocks, longest, compile_grammar=lambda structured: time.sleep(compiling))
