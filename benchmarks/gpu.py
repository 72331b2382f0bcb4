"""Check the attention kernels and the CUDA graphs on a GPU, and measure decode steps beside the memory's floor.

    kernels     each backend that can run here against float64: decode (split and not), prefill over a cached prefix,
                mixed batches; group sizes 1, 3, 4 and 8; head dims 64 and 128; float32, float16 and bfloat16
    replay      steps replayed from graphs, padded ones too, against the same steps run eagerly; and that a padded
                replay changes nothing in the cache but its own rows' slots
    schedules   tokens of a small float32 model: graphs, our kernels and steps one ahead, against torch's operators,
                eager, one step at a time
    steps       milliseconds of a decode step at 1 .. 256 sequences, from graphs and eagerly, beside the time in which
                the memory can deliver the weights and the KV that such a step reads
    cadence     the engine's step loop at intervals 1 and 2, with graphs and without: equal tokens, prefills on the
                beat, step times
    group       with several GPUs: two ranks that share experts over NCCL give the dense model's tokens

Weights are random: nothing is downloaded. Exit code 0: all checks hold; 1: one does not; 2: there is no GPU.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from benchmarks import _gpu_cadence as cadence
from benchmarks._attention import case, error
from benchmarks._weights import SHAPES, RandomWeights, random_model, write_model
from onbeat_engine.runner.attention import make
from onbeat_engine.runner.executor import BatchRow, EngineRequest
from onbeat_engine.runner.kv import KVCache, KVShape
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.runner.models.architecture import ModelConfig
from onbeat_engine.runner.models.load import LoadedModel
from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LIMITS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Largest difference from float64 that rounding explains, inputs being normal with variance 1."""
GROUPS = ((4, 4, 64), (9, 3, 64), (8, 2, 64), (8, 1, 128), (3, 1, 128), (32, 8, 128))
MIXED = [(0, 1), (700, 1), (0, 333), (517, 130), (1024, 1), (16, 1), (7, 2)]
DECODES = [(3000, 1), (1, 1), (513, 1)]


def runner_for(model: LoadedModel, config: EngineConfig, **parts: Any) -> ModelRunner:
    """Build a runner and a sampler."""
    return ModelRunner(model, config, Sampler(model.config.vocab_size, model.device, config.max_num_seqs), **parts)


# --- Checks ----------------------------------------------------------------------------------------------------------


class Check(NamedTuple):
    """One check: what was found, and the most that is right."""

    name: str
    found: float
    most: float

    @property
    def holds(self) -> bool:
        """Whether it holds; not-a-number does not."""
        return self.found <= self.most


def check_kernels(backends: Sequence[str], device: Any) -> list[Check]:
    """Compare each backend with float64; the worst of all group sizes counts."""
    checks = []
    for backend in backends:
        for dtype, most in LIMITS.items():
            if backend == "flashinfer" and dtype.itemsize != 2:
                continue
            for name, rows in (("mixed", MIXED), ("decodes", DECODES)):
                worst = 0.0
                for heads, kv_heads, dim in GROUPS:
                    step = case(rows, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype, device=device)
                    attention = make(backend, step.kv, heads, dtype, most_entries=4096)  # type: ignore[arg-type]  # of our own list
                    deviation = error(step, attention)
                    worst = max(worst, deviation) if deviation == deviation else deviation  # noqa: PLR0124 - not-a-number stays
                checks.append(Check(f"{backend} {name} {str(dtype).removeprefix('torch.')}", worst, most))
    return checks


def decode_rows(count: int, length: int, block_size: int, generator: Any, vocab_size: int) -> list[BatchRow]:
    """Return decodes whose `length` tokens before are, as far as the KV cache knows, computed."""
    width = -(-(length + 1) // block_size)
    rows = []
    for index in range(count):
        tokens = torch.randint(vocab_size, (length + 1,), generator=generator).tolist()
        request = EngineRequest(str(index), tokens, 64, GREEDY, seed=0)
        rows.append(BatchRow(request, length, 1, True, list(range(index * width, (index + 1) * width))))
    return rows


def fill(kv: KVCache) -> None:
    """Fill a cache with random content."""
    with torch.inference_mode():
        for keys, values in kv.layers:
            keys.normal_()
            values.normal_()


def check_replay(model: LoadedModel, config: EngineConfig, counts: Sequence[int], capture: Any = None) -> list[Check]:
    """Compare replayed steps with eager ones, and look at what they left in the cache.

    Of the logits the largest difference counts, relative to the largest logit. Both write the same slots.
    """
    graphs = runner_for(model, config, capture=capture)
    eager = runner_for(model, replace(config, enforce_eager=True))
    checks = []
    for count in counts:
        rows = decode_rows(count, 70, config.block_size, torch.Generator().manual_seed(count), model.config.vocab_size)
        fill(graphs._kv)
        before = [(keys.clone(), values.clone()) for keys, values in graphs._kv.layers]
        with torch.inference_mode():
            for (keys, values), (old_keys, old_values) in zip(eager._kv.layers, before, strict=True):
                keys.copy_(old_keys)
                values.copy_(old_values)
            batch = eager._inputs.fill(rows, None, 0)
            eager._attention.plan(batch)
            right = eager._logits(batch, eager._forward(batch))
            size = graphs._graph_size(rows)
            assert graphs._graphs is not None
            graphs._attention.plan(graphs._inputs.fill(rows, None, 0, size))
            output = graphs._graphs.replay(size)[:count]
        checks.append(
            Check(
                f"replay of {count} rows in a graph of {size}",
                float((output - right).abs().max() / right.abs().max()),
                1e-4 if model.dtype.itemsize >= 4 else 3e-2,
            )
        )
        changed = 0
        for (keys, values), old in zip(graphs._kv.layers, before, strict=True):
            for cache, was in zip((keys, values), old, strict=True):
                changed += int((cache != was)[: graphs.num_blocks].any(-1).any(1).sum())
        written = 2 * model.config.num_layers * count
        checks.append(Check(f"slots that {count} rows wrote beside their own", float(abs(changed - written)), 0.0))
    return checks


def check_schedules(device: Any, reference: str = "sdpa", **parts: Any) -> list[Check]:
    """Count requests whose greedy tokens differ between two ways of running the same schedule."""
    model = random_model(SHAPES["tiny"], torch.float32, device)
    plain = EngineConfig(
        dtype="float32",
        attention_backend=reference,  # type: ignore[arg-type]  # one of our own names
        enforce_eager=True,
        max_num_seqs=8,
        max_num_batched_tokens=200,
        num_gpu_blocks_override=40,
    )
    ours = EngineConfig(
        dtype="float32",
        async_scheduling=True,
        max_num_seqs=8,
        max_num_batched_tokens=50,
        num_gpu_blocks_override=30,
    )
    tokens = []
    for config, extra in ((plain, {}), (ours, parts)):
        loop = cadence.Loop(runner_for(model, config, **extra), config, max_model_len=512)
        for i in range(8):
            if i == 5:  # the others come while these are under way
                for _ in range(6):
                    loop.turn()
            loop.add(f"r{i}", [(i * 37 + j * (i + 3)) % 512 for j in range(20 + 9 * i)], 24)
        while loop.turn():
            pass
        tokens.append(loop.tokens)
    right, tried = tokens
    different = sum(len(right.get(id, ())) != 24 or right[id] != tried.get(id) for id in (f"r{i}" for i in range(8)))
    return [Check("requests of 8 with other tokens: graphs, one ahead, tight pool", float(different), 0.0)]


# --- Step times ------------------------------------------------------------------------------------------------------


class StepTime(NamedTuple):
    """One size; milliseconds."""

    sequences: int
    graph: float
    eager: float
    floor: float


def bandwidth(device: Any) -> float:
    """Return the bytes per second that the memory delivers to a plain sum over 2 GiB."""
    data = torch.ones(1 << 29, dtype=torch.float32, device=device)
    seconds = timed(data.sum, device, 10)
    return float(data.numel() * data.itemsize / seconds)


def timed(call: Callable[[], Any], device: Any, repeats: int) -> float:
    """Return the median seconds of a call, after two that do not count."""
    times = []
    for _ in range(repeats + 2):
        _synchronize(device)
        began = perf_counter()
        call()
        _synchronize(device)
        times.append(perf_counter() - began)
    return sorted(times[2:])[repeats // 2]


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weight_bytes(config: ModelConfig, dtype: Any) -> int:
    """Return the bytes of all weights that a decode step reads; of an embedding that is no head, next to nothing."""
    shapes = dict(RandomWeights(config, torch.device("cpu")).shapes)
    if not config.tie_word_embeddings:
        del shapes["model.embed_tokens.weight"]
    return sum(prod(shape) for shape in shapes.values()) * int(dtype.itemsize)


def _step(runner: ModelRunner, rows: Sequence[BatchRow]) -> None:
    runner.execute(rows).wait()


def step_times(
    model: LoadedModel,
    config: EngineConfig,
    sizes: Sequence[int],
    context: int,
    *,
    rate: float,
    repeats: int,
    capture: Any = None,
) -> list[StepTime]:
    """Measure whole steps, sampling included, each with all its requests `context` tokens long."""
    runner = runner_for(model, config, capture=capture)
    fill(runner._kv)
    weights = weight_bytes(model.config, model.dtype)
    per_token = runner._kv.shape.block_bytes / config.block_size
    results = []
    for size in sizes:
        generator = torch.Generator().manual_seed(size)
        rows = decode_rows(size, context, config.block_size, generator, model.config.vocab_size)
        graphs = runner._capture
        seconds = []
        for runner._capture in (graphs, None):
            seconds.append(timed(partial(_step, runner, rows), model.device, repeats))
        runner._capture = graphs
        floor = (weights + size * context * per_token) / rate
        results.append(StepTime(size, 1e3 * seconds[0], 1e3 * seconds[1], 1e3 * floor))
    return results


def sizes_that_fit(free: int, config: ModelConfig, context: int, block_size: int = 16) -> list[int]:
    """Return the sizes whose KV fits beside a bfloat16 model, 2 GiB being left for activations and graphs."""
    shape = KVShape(config.num_layers, config.num_kv_heads, config.head_dim, block_size, torch.bfloat16)
    weights = sum(map(prod, RandomWeights(config, torch.device("cpu")).shapes.values())) * 2
    per_sequence = -(-(context + 1) // block_size) * shape.block_bytes
    return [size for size in SIZES if weights + size * per_sequence + (2 << 30) <= free]


# --- The engine ------------------------------------------------------------------------------------------------------


def check_loop(device: Any, **sizes: Any) -> list[Check]:
    """Run the engine's step loop at each interval, with graphs and without, and print its step times."""
    model = random_model(SHAPES["tiny"], torch.float32, device)
    config = EngineConfig(dtype="float32", max_num_seqs=64, num_gpu_blocks_override=2048, enable_prefix_caching=False)
    runs = cadence.check_cadence(model, config, **sizes)
    cadence.show(runs)
    return [Check(name, float(count), 0.0) for name, count in cadence.faults(runs).items()]


def check_ranks(ranks: int, config: EngineConfig) -> list[Check]:
    """Compare ranks that share experts with a dense model on one rank."""
    with tempfile.TemporaryDirectory() as name:
        write_model(SHAPES["smallest"], Path(name))
        different = cadence.check_group(Path(name), config, ranks=ranks)
    return [Check(f"requests that {ranks} ranks answer otherwise than one", float(different), 0.0)]


# --- The program -----------------------------------------------------------------------------------------------------


def show_checks(title: str, checks: Sequence[Check]) -> None:
    """Print checks, one a line."""
    print(title)
    for check in checks:
        print(f"  {'holds' if check.holds else 'FAILS'}  {check.found:9.2e} of at most {check.most:.0e}  {check.name}")
    print(flush=True)


def show_times(times: Sequence[StepTime], shape: str, context: int, rate: float) -> None:
    """Print the table of step times."""
    print(f"Decode steps of {shape}, bfloat16, {context} tokens of context; memory {rate / 1e9:,.0f} GB/s")
    print("  sequences   graph ms   eager ms   floor ms   graph / floor   tokens/s")
    for step in times:
        print(
            f"  {step.sequences:9d}   {step.graph:8.2f}   {step.eager:8.2f}   {step.floor:8.2f}"
            f"   {step.graph / step.floor:13.2f}   {1e3 * step.sequences / step.graph:8.0f}"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--shape", choices=sorted(SHAPES), default="llama-8b", help="of the model whose steps are timed"
    )
    parser.add_argument("--context", type=int, default=1024, help="tokens of each sequence")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no GPU: torch sees no CUDA device, nothing was checked", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    from importlib.util import find_spec  # noqa: PLC0415 - beside what it guards

    backends = [name for name in ("triton", "flashinfer") if find_spec(name)]
    checks = check_kernels(backends, device)
    show_checks(f"Kernels against float64 ({', '.join(backends)})", checks)
    config = EngineConfig(max_num_seqs=256, num_gpu_blocks_override=256 * 6)
    replays = check_replay(random_model(SHAPES["smollm2-135m"], torch.bfloat16, device), config, (1, 3, 64, 201, 256))
    replays += check_schedules(device)
    show_checks("Graphs and schedules", replays)
    rate = bandwidth(device)
    torch.cuda.empty_cache()
    sizes = sizes_that_fit(torch.cuda.mem_get_info()[0], SHAPES[arguments.shape], arguments.context)
    times: list[StepTime] = []
    if sizes:
        model = random_model(SHAPES[arguments.shape], torch.bfloat16, device)
        width = -(-(arguments.context + 1) // 16)
        config = EngineConfig(max_num_seqs=max(sizes), num_gpu_blocks_override=max(sizes) * width)
        times = step_times(model, config, sizes, arguments.context, rate=rate, repeats=arguments.repeats)
        show_times(times, arguments.shape, arguments.context, rate)
    if len(sizes) < len(SIZES):
        print(f"sequences beyond {max(sizes, default=0)} of {arguments.shape} do not fit; a smaller --shape would")
    loop = check_loop(device, decodes=32, prompts=40, length=512)
    if torch.cuda.device_count() > 1:
        loop += check_ranks(2, EngineConfig(dtype="float32", num_gpu_blocks_override=512, max_model_len=256))
    else:
        print("one GPU: ranks that share experts were not checked", file=sys.stderr)
    show_checks("The engine", loop)
    checks += replays + loop
    if arguments.json:
        figures = {
            "device": torch.cuda.get_device_name(),
            "bytes_per_second": rate,
            "checks": [check._asdict() | {"holds": check.holds} for check in checks],
            "steps": [step._asdict() for step in times],
        }
        Path(arguments.json).write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
