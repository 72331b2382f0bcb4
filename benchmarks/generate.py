"""Measure the engine's output tokens per second on a CPU, beside transformers' batched generate in the same run.

Both sides get the same weights, dtype, threads and prompts, and generate the same number of tokens for each of the
concurrent requests. Ours is the reference scheduler with the model runner, one step after the other, monitor and
sampler included; theirs is one call of `generate` over the whole batch, greedy. The sides take turns. Where other
jobs run, the ratio of the CPU seconds is the better one.

With `--vllm-python`, an interpreter that has vLLM's build for CPUs, vLLM generates the same afterwards.

Beside it: what part of a step of n decodes is spent outside the model's forward and its logits.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from benchmarks._report import machine
from onbeat_engine.runner.executor import BatchRow, EngineRequest
from onbeat_engine.runner.model_runner import ModelRunner
from onbeat_engine.runner.models.load import LoadedModel, load_model, open_weights
from onbeat_engine.runner.sampling.sampler import Sampler
from onbeat_engine.wire.config import EngineConfig
from onbeat_engine.wire.params import SamplingParams
from onbeat_reference.scheduler import Scheduler
from onbeat_reference.watch import Watch

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Ours:
    """One run of ours; seconds."""

    tokens: list[list[int]]
    first: float
    """Until all requests have their first token."""
    total: float
    cpu: float
    """CPU seconds of all of it."""
    forward: float
    """In the forward and the logits, of the steps that only decoded."""
    decodes: float
    """Those steps, whole."""


class Timed:
    """A decoder whose forwards are timed."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, *arguments: Any) -> Any:
        """As the decoder's."""
        return self._time(self._decoder.forward, *arguments)

    def logits(self, hidden: Any) -> Any:
        """As the decoder's."""
        return self._time(self._decoder.logits, hidden)

    def _time(self, call: Any, *arguments: Any) -> Any:
        began = perf_counter()
        result = call(*arguments)
        self.seconds += perf_counter() - began
        return result


def run_ours(model: LoadedModel, config: EngineConfig, prompts: Sequence[Sequence[int]], output: int) -> Ours:
    """Generate `output` tokens for each prompt, all at once."""
    timed: Any = Timed(model.decoder)
    sampler = Sampler(model.config.vocab_size, model.device, config.max_num_seqs)
    runner = ModelRunner(LoadedModel(model.config, timed, model.source, model.max_model_len), config, sampler)
    scheduler = Scheduler(config.scheduler_config(num_blocks=runner.num_blocks, max_model_len=model.max_model_len))
    watch = Watch(scheduler)
    requests = [EngineRequest(str(i), prompt, output, GREEDY, seed=0) for i, prompt in enumerate(prompts)]
    for request in requests:
        scheduler.add_request(request)
    began, cpu = perf_counter(), process_time()
    first = forward = decodes = 0.0
    while scheduler.has_unfinished_requests():
        at, before = perf_counter(), timed.seconds
        step = scheduler.schedule()
        sampling = {request.id for request in scheduler.in_flight[-1].sampling}
        rows = []
        for id, tokens in step.scheduled.items():
            served = scheduler.requests[id]
            assert isinstance(served, EngineRequest)
            rows.append(BatchRow(served, served.num_computed - tokens, tokens, id in sampling, served.blocks))
        outputs = runner.execute(rows).wait()
        watch.step(step)
        done = scheduler.update(step, outputs.tokens)
        watch.delivered(done)
        for finished in done.finished:
            assert isinstance(finished, EngineRequest)
            runner.release(finished)
        now = perf_counter()
        if not first and all(len(request.tokens) > request.num_prompt for request in requests):
            first = now - began
        if not step.prefill:
            forward += timed.seconds - before
            decodes += now - at
    total = perf_counter() - began
    generated = [request.tokens[request.num_prompt :] for request in requests]
    return Ours(generated, first, total, process_time() - cpu, forward, decodes)


def run_theirs(theirs: Any, prompts: Sequence[Sequence[int]], output: int) -> tuple[list[list[int]], float, float]:
    """Do the same with transformers; return the tokens, the seconds, and the CPU seconds."""
    ids = torch.tensor(prompts)
    began, cpu = perf_counter(), process_time()
    with torch.inference_mode():
        tokens = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            min_new_tokens=output,
            max_new_tokens=output,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tokens[:, ids.shape[1] :].tolist(), perf_counter() - began, process_time() - cpu


def load_theirs(model: LoadedModel) -> Any:
    """Load the same weights into transformers (which reads GGUF files only with more packages than are here)."""
    import transformers  # noqa: PLC0415 - only needed here, and slow to import

    path, dtype = model.source.path, model.dtype
    if model.source.kind == "folder":
        theirs = transformers.AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype)
    else:
        config, weights = open_weights(model.source)
        shape = transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_word_embeddings,
        )
        theirs = transformers.LlamaForCausalLM(shape)
        theirs.load_state_dict({name: weights.read(name) for name in weights.shapes}, strict=False)
        theirs.tie_weights()
        theirs = theirs.to(dtype)
    theirs.generation_config.temperature = theirs.generation_config.top_p = theirs.generation_config.top_k = None
    return theirs.eval()


def run_vllm(theirs: Any, prompts: Sequence[Sequence[int]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Do the same with vLLM, in a process of its own; return its version, its best seconds, and the tokens.

    Raises:
        RuntimeError: it failed; with the last line that it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        settings = {
            "model": folder,
            **{name: getattr(arguments, name) for name in ("dtype", "threads", "output", "rounds")},
        }
        script = str(Path(__file__).with_name("_vllm_generate.py"))
        done = subprocess.run(
            [arguments.vllm_python, script, json.dumps(settings)],
            input=json.dumps(prompts),
            capture_output=True,
            text=True,
            check=False,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
    if done.returncode:
        raise RuntimeError(f"vLLM failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def prompts_of(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Return random prompts that share nothing."""
    generator = torch.Generator().manual_seed(0)
    prompts: list[list[int]] = torch.randint(10, vocab_size, (count, length), generator=generator).tolist()
    return prompts


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both sides; the best round of each counts."""
    config = EngineConfig(
        model=arguments.model,
        dtype=arguments.dtype,
        device="cpu",
        block_size=arguments.block_size,
        max_num_seqs=max(arguments.requests, arguments.decodes),
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_model_len=arguments.prompt + arguments.output + 1,
    )
    model = load_model(config)
    prompts = prompts_of(arguments.requests, arguments.prompt, model.config.vocab_size)
    theirs = None if arguments.only_ours else load_theirs(model)
    ours_best: Ours | None = None
    their_tokens, their_best, their_cpu, our_cpu = None, float("inf"), float("inf"), float("inf")
    for _ in range(arguments.rounds):
        ours = run_ours(model, config, prompts, arguments.output)
        our_cpu = min(our_cpu, ours.cpu)
        if ours_best is None or ours.total < ours_best.total:
            ours_best = ours
        if theirs is not None:
            their_tokens, seconds, cpu = run_theirs(theirs, prompts, arguments.output)
            their_best, their_cpu = min(their_best, seconds), min(their_cpu, cpu)
    assert ours_best is not None
    many = prompts_of(arguments.decodes, arguments.prompt, model.config.vocab_size)
    wide = run_ours(model, config, many, min(arguments.output, 17))
    generated = arguments.requests * arguments.output
    result: dict[str, Any] = {
        "machine": machine(os.getloadavg()[0], os.cpu_count() or 1),
        "settings": {key: value for key, value in vars(arguments).items() if key != "json"},
        "ours": {key: value for key, value in asdict(ours_best).items() if key != "tokens"},
        "ours_tokens_per_second": generated / ours_best.total,
        "outside_forward": 1 - ours_best.forward / ours_best.decodes,
        "outside_forward_wide": 1 - wide.forward / wide.decodes,
        "wide_step_ms": 1e3 * wide.decodes / (min(arguments.output, 17) - 1),
    }
    if their_tokens is not None:
        pairs = zip(ours_best.tokens, their_tokens, strict=True)
        result["transformers_tokens_per_second"] = generated / their_best
        result["ratio"] = their_best / ours_best.total
        result["cpu_ratio"] = their_cpu / our_cpu
        result["equal_requests"] = sum(mine == other for mine, other in pairs)
    if theirs is not None and arguments.vllm_python:
        vllm = run_vllm(theirs, prompts, arguments)
        result["vllm"] = vllm["version"]
        result["vllm_tokens_per_second"] = generated / vllm["seconds"]
        result["vllm_ratio"] = vllm["seconds"] / ours_best.total
        result["vllm_equal_requests"] = sum(
            mine == other for mine, other in zip(ours_best.tokens, vllm["tokens"], strict=True)
        )
    return result


def show(result: dict[str, Any]) -> None:
    """Print the figures."""
    settings, ours = result["settings"], result["ours"]
    print(result["machine"])
    print(
        f"{settings['requests']} requests at once, {settings['prompt']} tokens in, {settings['output']} out, "
        f"{settings['dtype']}, {settings['threads']} thread(s)\n"
    )
    print("                 tokens/s")
    print(f"  onbeat         {result['ours_tokens_per_second']:8.1f}   first tokens after {ours['first']:.2f} s")
    if "ratio" in result:
        print(f"  transformers   {result['transformers_tokens_per_second']:8.1f}")
        print(
            f"  ratio          {result['ratio']:8.2f}   {result['cpu_ratio']:.2f} by CPU seconds; the same tokens in "
            f"{result['equal_requests']} of {settings['requests']} requests"
        )
    if "vllm" in result:
        print(f"  vLLM {result['vllm']:9s} {result['vllm_tokens_per_second']:8.1f}")
        print(
            f"  ratio          {result['vllm_ratio']:8.2f}   the same tokens in {result['vllm_equal_requests']} of "
            f"{settings['requests']} requests"
        )
    print(
        f"\n  Outside the forward: {100 * result['outside_forward']:.1f} % of a step of {settings['requests']} decodes,"
        f" {100 * result['outside_forward_wide']:.1f} % of one of {settings['decodes']} "
        f"({result['wide_step_ms']:.1f} ms)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate", description=__doc__)
    parser.add_argument("--model", default=None, help="folder or GGUF file; default: SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float64"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens generated for each")
    parser.add_argument("--decodes", type=int, default=32, help="rows of the step whose parts are told")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument(
        "--vllm-python", metavar="PATH", help="an interpreter with vLLM's build for CPUs: its figure too"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    result = measure(arguments)
    show(result)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
