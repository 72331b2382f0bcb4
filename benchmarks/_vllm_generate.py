"""Generate with vLLM what `benchmarks.generate` generates; run by an interpreter that has vLLM's build for CPUs.

    python benchmarks/_vllm_generate.py '{"model": FOLDER, "dtype": ..., "threads": n, ...}' < PROMPTS

Reads the prompts, lists of token ids, as JSON; prints one line of JSON: version, best seconds, tokens.
"""

import json
import os
import sys
import time


def main() -> int:
    """Generate."""
    settings = json.loads(sys.argv[1])
    os.environ |= {
        "OMP_NUM_THREADS": str(settings["threads"]),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    import torch  # noqa: PLC0415 - both read the environment when they are imported
    import vllm  # noqa: PLC0415

    torch.set_num_threads(settings["threads"])
    prompts = json.load(sys.stdin)
    output, longest = settings["output"], max(map(len, prompts))
    llm = vllm.LLM(
        model=settings["model"],
        dtype=settings["dtype"],
        skip_tokenizer_init=True,
        max_model_len=longest + output + 1,
        max_num_seqs=len(prompts),
        enable_prefix_caching=False,
    )
    params = vllm.SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    best, tokens = float("inf"), None
    for _ in range(settings["rounds"]):
        began = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        best = min(best, time.perf_counter() - began)
        tokens = [list(request_output.outputs[0].token_ids) for request_output in outputs]
    print(json.dumps({"version": vllm.__version__, "seconds": best, "tokens": tokens}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
