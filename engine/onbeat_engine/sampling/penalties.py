"""Presence, frequency and repetition penalties. What was seen of each request is counted on the device.

So they are right also when a step is submitted before the tokens of the step before it have reached the host.
"""

from collections.abc import Sequence
from typing import Any

import torch

from onbeat_engine.sampling.transfer import to_device


class Penalties:
    """Counts of the requests that have penalties, one slot each.

    Args:
        vocab_size: V, columns of the logits.
        device: a torch.device.
    """

    def __init__(self, vocab_size: int, device: Any) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._free: list[int] = []
        self._sampled = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        """[N, V] how often each token was sampled."""
        self._seen = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        """[N, V] whether it was sampled or is in the prompt."""

    def open(self) -> int:
        """Return a slot; `fill` it before use."""
        if not self._free:
            have = self._sampled.shape[0]
            more = max(have, 4)
            self._sampled = torch.cat([self._sampled, self._sampled.new_zeros((more, self._vocab_size))])
            self._seen = torch.cat([self._seen, self._seen.new_zeros((more, self._vocab_size))])
            self._free.extend(range(have + more - 1, have - 1, -1))
        return self._free.pop()

    def close(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def fill(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Count a request anew, from tokens that the host knows."""
        self._sampled[slot].zero_()
        self._seen[slot].zero_()
        if prompt:
            self._seen[slot, to_device(prompt, torch.int64, self._device)] = True
        if output:
            ids = to_device(output, torch.int64, self._device)
            self._seen[slot, ids] = True
            self._sampled[slot].index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def count(self, slots: Any, tokens: Any) -> None:
        """Count one sampled token each.

        Args:
            slots: [n], all different.
            tokens: [n] ids, on the device.
        """
        self._sampled[slots, tokens] += 1
        self._seen[slots, tokens] = True

    def apply(self, logits: Any, rows: Any, slots: Any, penalties: Any) -> None:
        """Change logits in place.

        A token that was seen, prompt included, has its logit divided by `repetition` if positive, else multiplied by
        it (Keskar et al. 2019); then each time that a token was sampled takes `frequency` from its logit, and having
        been sampled at all takes `presence` (OpenAI's definition).

        Args:
            logits: [S, V].
            rows, slots: [n] indices.
            penalties: [3, n, 1]: repetition, frequency, presence.
        """
        repetition, frequency, presence = penalties
        part = logits[rows]
        repeated = torch.where(part > 0, part / repetition, part * repetition)
        part = torch.where(self._seen[slots], repeated, part)
        sampled = self._sampled[slots]
        part -= frequency * sampled
        part -= presence * (sampled > 0)
        logits[rows] = part
