"""Penalties, by hand and beside transformers."""

import pytest
import torch

from onbeat_engine.sampling.penalties import Penalties

CPU = torch.device("cpu")


def test_by_hand() -> None:
    """Prompt 0 1, output 1 2 2; repetition 2, frequency 0.5, presence 0.25."""
    penalties = Penalties(4, CPU)
    slot = penalties.open()
    penalties.fill(slot, [0, 1], [1, 2, 2])
    logits = torch.tensor([[9.0, 9.0, 9.0, 9.0], [4.0, -4.0, 1.0, 3.0]])
    table = torch.tensor([[[2.0]], [[0.5]], [[0.25]]])
    penalties.apply(logits, torch.tensor([1]), torch.tensor([slot]), table)
    # 4/2; -4*2 - 0.5 - 0.25; 1/2 - 2*0.5 - 0.25; unseen
    assert logits.tolist() == [[9.0, 9.0, 9.0, 9.0], [2.0, -8.75, -0.75, 3.0]]


def test_counting_on_is_counting_anew() -> None:
    penalties = Penalties(6, CPU)
    slots = [penalties.open() for _ in range(3)]
    for slot in slots:
        penalties.fill(slot, [0], [])
    for tokens in ([1, 2, 3], [1, 4, 3]):
        penalties.count(torch.tensor(slots), torch.tensor(tokens))
    other = Penalties(6, CPU)
    for output in ([1, 1], [2, 4], [3, 3]):
        other.fill(other.open(), [0], output)
    logits = torch.arange(18.0).view(3, 6) - 9
    table = torch.tensor([[1.5, 0.7, 3.0], [0.1, -0.2, 1.0], [-0.3, 0.4, 2.0]])[:, :, None]
    results = []
    for each, numbers in ((penalties, slots), (other, [0, 1, 2])):
        results.append(logits.clone())
        each.apply(results[-1], torch.tensor([0, 1, 2]), torch.tensor(numbers), table)
    assert torch.equal(*results)


def test_repetition_like_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3))
    seen = [3, 4, 5, 4]
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits.clone())
    penalties = Penalties(50, CPU)
    slot = penalties.open()
    penalties.fill(slot, seen[:2], seen[2:])
    penalties.apply(logits, torch.tensor([0]), torch.tensor([slot]), torch.tensor([[[1.3]], [[0.0]], [[0.0]]]))
    assert torch.equal(logits, theirs)


def test_slots_are_used_again() -> None:
    penalties = Penalties(3, CPU)
    slots = [penalties.open() for _ in range(9)]
    assert sorted(slots) == list(range(9))
    penalties.fill(slots[4], [0], [1])
    penalties.close(slots[4])
    assert penalties.open() == slots[4]
    penalties.fill(slots[4], [], [])
    logits = torch.ones(1, 3)
    table = torch.tensor([[[2.0]], [[1.0]], [[1.0]]])
    penalties.apply(logits, torch.tensor([0]), torch.tensor([slots[4]]), table)
    assert logits.tolist() == [[1.0, 1.0, 1.0]]
