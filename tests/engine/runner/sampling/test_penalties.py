"""Penalties, by hand and beside transformers."""

import pytest
import torch

from onbeat_engine.runner.sampling.penalties import Penalties

CPU = torch.device("cpu")


def test_by_hand() -> None:
    """Prompt 0 1, output 1 2 2; repetition 2, frequency 0.5, presence 0.25."""
    penalties = Penalties(4, CPU)
    slot = penalties.open()
    penalties.fill(slot, [0, 1], [1, 2, 2])
    logits = torch.tensor([[9.0, 9.0, 9.0, 9.0], [4.0, -4.0, 1.0, 3.0]])
    table = torch.tensor([[[2.0]], [[0.5]], [[0.25]]])
    penalties.apply(logits, torch.tensor([1]), torch.tensor([slot]), 5, table)
    # 4/2; -4*2 - 0.5 - 0.25; 1/2 - 2*0.5 - 0.25; unseen
    assert logits.tolist() == [[9.0, 9.0, 9.0, 9.0], [2.0, -8.75, -0.75, 3.0]]


def test_counting_on_is_counting_anew() -> None:
    penalties = Penalties(6, CPU)
    slots = [penalties.open() for _ in range(3)]
    for slot in slots:
        penalties.fill(slot, [0], [])
    for position, tokens in enumerate(([1, 2, 3], [1, 4, 3]), 1):
        penalties.add(torch.tensor(slots), [position] * 3, torch.tensor(tokens))
    other = Penalties(6, CPU)
    for output in ([1, 1], [2, 4], [3, 3]):
        other.fill(other.open(), [0], output)
    logits = torch.arange(18.0).view(3, 6) - 9
    table = torch.tensor([[1.5, 0.7, 3.0], [0.1, -0.2, 1.0], [-0.3, 0.4, 2.0]])[:, :, None]
    results = []
    for each, numbers in ((penalties, slots), (other, [0, 1, 2])):
        results.append(logits.clone())
        each.apply(results[-1], torch.tensor([0, 1, 2]), torch.tensor(numbers), 3, table)
    assert torch.equal(*results)


def test_repetition_like_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3))
    seen = [3, 4, 5, 4]
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits.clone())
    penalties = Penalties(50, CPU)
    slot = penalties.open()
    penalties.fill(slot, seen[:2], seen[2:])
    penalties.apply(logits, torch.tensor([0]), torch.tensor([slot]), 4, torch.tensor([[[1.3]], [[0.0]], [[0.0]]]))
    assert torch.equal(logits, theirs)


def test_slots_are_used_again() -> None:
    penalties = Penalties(3, CPU)
    slots = [penalties.open() for _ in range(9)]
    assert sorted(slots) == list(range(9))
    penalties.fill(slots[4], [0], [1])
    penalties.close(slots[4])
    assert penalties.open() == slots[4]
    penalties.fill(slots[4], [2], [])
    logits = torch.ones(1, 3)
    table = torch.tensor([[[2.0]], [[1.0]], [[1.0]]])
    penalties.apply(logits, torch.tensor([0]), torch.tensor([slots[4]]), 1, table)
    assert logits.tolist() == [[1.0, 1.0, 0.5]]


def test_requests_of_any_length() -> None:
    """Shorter ones beside longer ones; rows that grow."""
    penalties = Penalties(1000, CPU)
    slots = [penalties.open() for _ in range(2)]
    penalties.fill(slots[0], [7], [8])
    penalties.fill(slots[1], list(range(100)), list(range(100, 700)))
    penalties.add(torch.tensor(slots), [2, 700], torch.tensor([9, 999]))
    penalties.add(torch.tensor(slots[1:]), [1500], torch.tensor([998]))
    logits = torch.ones(2, 1000)
    table = torch.tensor([[[2.0], [2.0]], [[1.0], [1.0]], [[0.0], [0.0]]])
    penalties.apply(logits, torch.tensor([0, 1]), torch.tensor(slots), 1501, table)
    expected = torch.ones(2, 1000)
    expected[0, 7] = expected[1, :100] = 0.5
    expected[0, 8:10] = expected[1, 100:700] = expected[1, 998:] = -0.5
    assert torch.equal(logits, expected)
