"""What FlashInfer is told: stand-ins for its wrappers attend by what their `plan` was given, as its documents say.

The library itself runs on a GPU only; `benchmarks/gpu.py` checks it there.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks._attention import Case, case, error

MIXED = [(0, 1), (40, 1), (0, 21), (33, 18), (16, 1), (7, 2)]
DECODES = [(130, 1), (5, 1), (64, 1)]


class Wrapper:
    """Attention over pages that are listed end to end; the last page of each request is filled partly."""

    planned: tuple[Any, ...]
    made: list["Wrapper"] = []  # noqa: RUF012 - the stand-ins of one test, emptied by its fixture

    def __init__(self, workspace: Any, layout: str, **options: Any) -> None:
        assert layout == "HND"
        assert workspace.dtype == torch.uint8
        self.options = options
        self.made.append(self)

    def run(self, q: Any, cache: tuple[Any, Any]) -> Any:
        assert q.is_contiguous()
        queries, starts, pages, last, heads, kv_heads, dim, size = self.planned
        assert q.shape[1:] == (heads, dim)
        out = torch.empty_like(q)
        for row in range(len(last)):
            ids = pages[starts[row] : starts[row + 1]].long()
            length = (len(ids) - 1) * size + int(last[row])
            k, v = (each[ids].transpose(1, 2).flatten(0, 1)[:length] for each in cache)
            k, v = (each.repeat_interleave(heads // kv_heads, 1) for each in (k, v))
            part = q[queries[row] : queries[row + 1]]
            scores = torch.einsum("qhd,khd->hqk", part, k) / dim**0.5
            later = torch.arange(length) > torch.arange(length - len(part), length)[:, None]
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)
            out[queries[row] : queries[row + 1]] = torch.einsum("hqk,khd->qhd", weights, v)
        return out


class Decode(Wrapper):
    def plan(self, starts: Any, pages: Any, last: Any, *sizes: int, q_data_type: Any, kv_data_type: Any) -> None:
        assert q_data_type == kv_data_type == torch.float32
        assert starts.dtype == pages.dtype == last.dtype == torch.int32
        if self.options.get("use_cuda_graph"):
            assert len(last) == len(self.options["paged_kv_last_page_len_buffer"])
            assert len(starts) == len(self.options["paged_kv_indptr_buffer"])
            assert len(pages) <= len(self.options["paged_kv_indices_buffer"])
        assert starts[0] == 0
        assert starts[-1] == len(pages)
        self.planned = (range(len(last) + 1), starts, pages.clone(), last, *sizes)


class Prefill(Wrapper):
    def plan(
        self,
        queries: Any,
        starts: Any,
        pages: Any,
        last: Any,
        *sizes: int,
        causal: bool,
        q_data_type: Any,
        **_rest: Any,
    ) -> None:
        assert causal
        assert queries.dtype == starts.dtype == pages.dtype == last.dtype == torch.int32
        assert queries[0] == starts[0] == 0
        assert starts[-1] == len(pages)
        self.planned = (queries, starts, pages.clone(), last, *sizes)


class Event:
    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    library: Any = ModuleType("flashinfer")
    library.BatchDecodeWithPagedKVCacheWrapper = Decode
    library.BatchPrefillWithPagedKVCacheWrapper = Prefill
    monkeypatch.setitem(sys.modules, "flashinfer", library)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    name = "onbeat_engine.runner.attention.flashinfer"
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module(name)
    monkeypatch.setattr(module, "WORKSPACE_BYTES", 16)
    Wrapper.made.clear()
    yield lambda step: _make(module, step)
    sys.modules.pop(name, None)


def _make(module: Any, step: Case) -> Any:
    return module.FlashInferAttention(step.kv, step.q.shape[1], torch.float32, 100)


@pytest.mark.parametrize("rows", [MIXED, DECODES, [(0, 21), (33, 18)]], ids=["mixed", "decodes", "chunks"])
def test_plans(backend: Any, rows: list[tuple[int, int]]) -> None:
    step = case(rows, heads=6, kv_heads=2, dim=16)
    assert error(step, backend(step)) < 2e-6


def test_graphs_have_a_wrapper_for_each_size(backend: Any) -> None:
    step = case(DECODES, heads=6, kv_heads=2, dim=16, pad_to=4)
    ours = backend(step)
    assert error(step, ours) < 2e-6
    assert error(step, ours) < 2e-6
    graphs = [wrapper for wrapper in Wrapper.made if wrapper.options.get("use_cuda_graph")]
    assert len(graphs) == 1
    assert len(graphs[0].options["paged_kv_last_page_len_buffer"]) == 4
