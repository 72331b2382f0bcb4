"""Log probabilities."""

import math

import pytest
import torch

from onbeat_engine.runner.sampling.logprobs import ROWS_AT_ONCE, prompt_logprobs


def test_by_hand() -> None:
    """Probabilities 1/8, 1/2, 1/4, 1/8."""
    logits = torch.log(torch.tensor([[1.0, 4.0, 2.0, 1.0]] * 3)) + 7
    first, second, third = prompt_logprobs(logits, [1, 2, 3], 2)
    for entry in (first, second, third):
        assert entry.top_tokens == (1, 2)
        assert entry.top_logprobs == pytest.approx((-math.log(2), -math.log(4)), abs=1e-6)
    assert [entry.token for entry in (first, second, third)] == [1, 2, 3]
    assert [entry.rank for entry in (first, second, third)] == [1, 2, 3]
    assert [entry.logprob for entry in (first, second, third)] == pytest.approx(
        [-math.log(2), -math.log(4), -math.log(8)], abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_like_log_softmax(dtype: object) -> None:
    n = ROWS_AT_ONCE * 2 + 3
    logits = (torch.randn(n, 40, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    tokens = torch.randint(0, 40, (n,), generator=torch.Generator().manual_seed(1)).tolist()
    expected = logits.double().log_softmax(-1)
    entries = prompt_logprobs(logits, tokens, 5)
    assert len(entries) == n
    for row, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(expected[row, tokens[row]].item(), abs=1e-5)
        assert list(entry.top_logprobs) == pytest.approx(expected[row].topk(5).values.tolist(), abs=1e-5)
        assert entry.rank == (expected[row] > expected[row, tokens[row]]).sum().item() + 1


def test_no_alternatives() -> None:
    (entry,) = prompt_logprobs(torch.zeros(1, 4), [3], 0)
    assert (entry.top_tokens, entry.top_logprobs, entry.rank) == ((), (), 1)
    assert entry.logprob == pytest.approx(-math.log(4))


def test_more_alternatives_than_tokens() -> None:
    (entry,) = prompt_logprobs(torch.zeros(1, 4), [3], 20)
    assert sorted(entry.top_tokens) == [0, 1, 2, 3]


def test_nothing() -> None:
    assert prompt_logprobs(torch.zeros(0, 4), [], 1) == []
