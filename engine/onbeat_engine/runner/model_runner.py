"""The model runner: executes the scheduler's steps with a real model."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from onbeat_engine.runner.attention import make
from onbeat_engine.runner.batch import Batch, Inputs, Last, state_of
from onbeat_engine.runner.companions import Companions
from onbeat_engine.runner.executor import BatchRow, EngineRequest, StepOutputs
from onbeat_engine.runner.graphs import Capture, CudaCapture, DecodeGraphs, Forward, ladder, size_for
from onbeat_engine.runner.kv import KVCache, KVShape, blocks_on_cpu, blocks_on_cuda, kv_dtype
from onbeat_engine.runner.models.load import LoadedModel
from onbeat_engine.runner.sampling.logprobs import ROWS_AT_ONCE, prompt_logprobs
from onbeat_engine.runner.sampling.sampler import Sampled, Sampler
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.messages import TokenLogprobs
from onbeat_engine.wire.params import SamplingParams
from onbeat_spec.errors import ConfigError, ProtocolMisuse

MOST_MOE_ROWS = 256
"""Beyond so many rows the experts wait for the device, which a graph cannot."""


def choose_device(asked: str) -> Any:
    """Return the device that `EngineConfig.device` means.

    Raises:
        ConfigError: CUDA was asked for and is not there.
    """
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise ConfigError("device is 'cuda', and torch sees no CUDA device; use 'auto' or 'cpu'")
    return torch.device("cuda" if there and asked != "cpu" else "cpu")


class RunningStep:
    """A step that runs; see `executor.Pending`."""

    def __init__(self, sampler: Sampler, requests: list[EngineRequest], sampled: Sampled | None) -> None:
        self._sampler = sampler
        self._requests = requests
        self._sampled = sampled
        self.prompt_logprobs: dict[str, list[TokenLogprobs]] = {}

    def wait(self) -> StepOutputs:
        """Wait for the tokens."""
        outputs = StepOutputs(prompt_logprobs=self.prompt_logprobs)
        if self._sampled is not None:
            collected = self._sampler.collect(self._sampled)
            for request, token, logprobs in zip(self._requests, *collected, strict=True):
                outputs.tokens[request.id] = [token]
                if logprobs is not None:
                    outputs.logprobs[request.id] = [logprobs]
        return outputs


class ModelRunner:
    """Executes steps on one device; see `executor.Executor`.

    Args:
        model: loaded onto the device.
        sampler: for its vocabulary, on the same device.
        companions: the ranks that share this one's experts; None: it holds them all.
        capture: how decode-only steps are captured; None: CUDA graphs where there is CUDA and the configuration
            does not forbid them, else not at all.

    Raises:
        ConfigError: there is no memory for the KV cache, or the attention backend cannot run here.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: EngineConfig,
        sampler: Sampler,
        *,
        companions: Companions | None = None,
        capture: Capture | None = None,
    ) -> None:
        self.model = model
        self.config = config
        self.device = model.device
        self._sampler = sampler
        self._companions = companions
        shape = model.config
        self._kv_shape = KVShape(
            shape.num_layers, shape.num_kv_heads, shape.head_dim, config.block_size, kv_dtype(model.dtype, self.device)
        )
        self._most_blocks = -(-model.max_model_len // config.block_size)
        """Of one request."""
        self.num_blocks = config.num_gpu_blocks_override or self._blocks_that_fit()
        self._kv = KVCache(self._kv_shape, self.num_blocks, self.device)
        self._inputs = Inputs(
            max_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
            max_rows=config.max_num_seqs,
            max_blocks=self._most_blocks,
            block_size=config.block_size,
            scratch=self._kv.scratch,
            device=self.device,
        )
        self._attention = make(
            config.attention_backend,
            self._kv,
            shape.num_heads,
            model.dtype,
            most_entries=config.max_num_seqs * self._most_blocks,
        )
        cuda_graphs = self.device.type == "cuda" and not config.enforce_eager and self._attention.capturable
        self._capture = capture or (CudaCapture() if cuda_graphs else None)
        self._sizes = self._ladder()
        self._graphs: DecodeGraphs | None = None
        self._prepare()
        self._steps = 0
        self._previous: Any = None
        """Tokens sampled by the latest step."""

    # Steps.

    def execute(self, rows: Sequence[BatchRow]) -> RunningStep:
        """Begin a step. On CUDA nothing is waited for; on a CPU the step has ended when this returns."""
        if not self._kv.layers:
            raise ProtocolMisuse("a step was given to a runner that sleeps; call wake_up() first")
        with torch.inference_mode():
            size = self._agree(rows)
            batch = self._inputs.fill(rows, self._previous, self._steps, size)
            self._attention.plan(batch)
            hidden: Any = None
            if size and self._graphs is not None:
                logits = self._graphs.replay(size)
                if len(batch.sampling) != batch.num_rows:
                    logits = logits.index_select(0, batch.sample_at)
            else:
                hidden = self._forward(batch)
                logits = self._logits(batch, hidden)
            return self._sample(batch, logits, hidden)

    def dummy(self) -> int | None:
        """Take part in a forward of the group without a token; see `Executor.dummy`."""
        if self._companions is None:
            return 0
        with torch.inference_mode():
            size = self._agree([])
            if size and self._graphs is not None:
                self._pad(size)
                return self._companions.count(partial(self._graphs.replay, size))
            none = torch.zeros(0, dtype=torch.int64, device=self.device)
            forward = partial(self.model.decoder.forward, none, none, self._attention, self._companions)
            return self._companions.count(forward)

    def release(self, request: EngineRequest) -> None:
        """Forget a request."""
        request.runner_state = None
        self._sampler.release(request)

    # Memory.

    def sleep(self) -> None:
        """Give the KV cache up, and the graphs, which know its addresses."""
        self._graphs = None
        self._previous = None
        self._kv.free()

    def wake_up(self) -> None:
        """Take the memory back, empty."""
        self._kv.allocate()
        if self._companions is None:  # a group's ranks wake at different moments: they capture in the next forward
            self._prepare()

    def _blocks_that_fit(self) -> int:
        most = self.config.max_num_seqs * self._most_blocks
        if self.device.type == "cpu":
            return blocks_on_cpu(self._kv_shape, most=most)
        return blocks_on_cuda(
            self._kv_shape, self.device, self.config.gpu_memory_utilization, self._largest_step, most=most
        )

    def _largest_step(self) -> None:
        """Run as many tokens as a step may have, without attention, and sample from as many rows with top-p.

        That takes the most memory of all that sampling does.
        """
        tokens = torch.zeros(self.config.max_num_batched_tokens, dtype=torch.int64, device=self.device)
        with torch.inference_mode():
            if self._companions is not None:
                self._companions.begin(len(tokens), False)
            hidden = self.model.decoder.forward(tokens, tokens, lambda _layer, q, _k, _v: q, self._companions)
            logits = self.model.decoder.logits(hidden[: self.config.max_num_seqs])
            params = SamplingParams(top_p=0.5, min_p=0.1)
            rows = [EngineRequest(str(row), [0], 1, params, seed=0) for row in range(len(logits))]
            self._sampler.sample(logits, rows, [1] * len(rows))
            for row in rows:
                self._sampler.release(row)

    # The forward.

    def _forward(self, batch: Batch) -> Any:
        decoder = self.model.decoder
        return decoder.forward(batch.token_ids, batch.positions, self._attention, self._companions, batch.real)

    def _logits(self, batch: Batch, hidden: Any) -> Any:
        """Logits of the rows that sample; None: no row does."""
        if not batch.sampling:
            return None
        if len(batch.sampling) != batch.num_tokens:
            hidden = hidden.index_select(0, batch.sample_at)
        return self.model.decoder.logits(hidden)

    def _sample(self, batch: Batch, logits: Any, hidden: Any) -> RunningStep:
        requests = [row.request for row in batch.sampling]
        sampled: Sampled | None = None
        self._steps += 1
        if requests:
            sampled = self._sampler.sample(logits, requests, [row.start + row.num_tokens for row in batch.sampling])
            self._previous = sampled.tokens
            for index, request in enumerate(requests):
                state_of(request, self._most_blocks).last = Last(self._steps, index)
        step = RunningStep(self._sampler, requests, sampled)
        for index, row in enumerate(batch.rows):
            if _wants_prompt(row):
                first = int(batch.host_query_starts[index])
                step.prompt_logprobs[row.request.id] = self._prompt_logprobs(row, hidden[first:])
        return step

    def _prompt_logprobs(self, row: BatchRow, hidden: Any) -> list[TokenLogprobs]:
        """What the model says of the prompt's tokens that follow those of a chunk.

        Args:
            hidden: of the chunk's tokens, and whatever comes behind.
        """
        request, lists = row.request, []
        assert request.params.prompt_logprobs is not None
        first, end = row.start + 1, min(row.start + row.num_tokens + 1, request.num_prompt)
        for start in range(first, end, ROWS_AT_ONCE):
            tokens = request.tokens[start : min(start + ROWS_AT_ONCE, end)]
            logits = self.model.decoder.logits(hidden[start - first :][: len(tokens)])
            lists += prompt_logprobs(logits, tokens, request.params.prompt_logprobs)
        return lists

    # Graphs.

    def _ladder(self) -> list[int]:
        """Return the sizes to capture."""
        ranks = 1 if self._companions is None else self._companions.size
        most = self.config.max_num_seqs
        if self.model.config.is_moe:
            most = min(most, MOST_MOE_ROWS // ranks)  # every rank's rows come to every rank
        return ladder(most)

    def _prepare(self) -> None:
        """Capture all sizes, if this rank can and all others of its group too."""
        with torch.inference_mode():
            self._agree([])

    def _captured(self) -> DecodeGraphs:
        model = self.model
        assert self._capture is not None
        dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
        logits = torch.zeros(self._sizes[-1], model.config.vocab_size, dtype=dtype, device=self.device)
        return DecodeGraphs(self._sizes, lambda size: self._padding_step(logits[:size]), self._capture)

    def _padding_step(self, logits: Any) -> Forward:
        """Lay out a step of padding alone; return what runs whatever is in the buffers then.

        Args:
            logits: where they go. One tensor serves all sizes, so that the graphs share the rest of their memory.
        """
        batch = self._pad(len(logits))

        def forward() -> Any:
            if self._companions is not None:
                self._companions.alike(len(logits))
            return logits.copy_(self.model.decoder.logits(self._forward(batch)))

        return forward

    def _pad(self, size: int) -> Batch:
        """Fill the buffers with padding alone."""
        batch = self._inputs.fill([], None, -1, size)
        self._attention.plan(batch)
        return batch

    def _agree(self, rows: Sequence[BatchRow]) -> int:
        """Begin a forward, together with the group if there is one; return the rows of the graph to replay; 0: none."""
        size = self._graph_size(rows)
        if self._companions is not None:
            shape = self._companions.begin(sum(row.num_tokens for row in rows), size > 0)
            size = size_for(self._sizes, shape.padded) if shape.replays else 0
        if size and self._graphs is None:
            self._graphs = self._captured()
        return size

    def _graph_size(self, rows: Sequence[BatchRow]) -> int:
        """Rows of the graph that could serve a step; 0: none."""
        if self._capture is None or any(row.num_tokens != 1 or _wants_prompt(row) for row in rows):
            return 0
        return size_for(self._sizes, len(rows))


def _wants_prompt(row: BatchRow) -> bool:
    """Whether a row brings log probabilities of the prompt that were not delivered yet."""
    request = row.request
    if request.params.prompt_logprobs is None:
        return False
    end = min(row.start + row.num_tokens, request.num_prompt - 1)
    return row.start < end and request.logprobs_done < end
