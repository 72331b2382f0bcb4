"""Presence, frequency and repetition penalties. What was seen of each request is kept on the device.

So they are right also when a step is submitted before the tokens of the step before it have reached the host. A request
has its tokens in the order in which they came, so that only logits of tokens that it has seen are touched.
"""

from collections.abc import Sequence
from typing import Any

import torch

from onbeat_engine.runner.sampling.transfer import to_device


class Penalties:
    """Tokens and counts of the requests that have penalties, one slot each.

    Args:
        vocab_size: V, columns of the logits.
        device: a torch.device.
    """

    def __init__(self, vocab_size: int, device: Any) -> None:
        self._device = device
        self._free: list[int] = []
        self._sampled = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        """[N, V] how often each token was sampled."""
        self._tokens = torch.zeros((0, 256), dtype=torch.int64, device=device)
        """[N, L] tokens of prompt and output; then, to the end of the row, the first of them again and again."""

    def open(self) -> int:
        """Return a slot; `fill` it before use."""
        if not self._free:
            have = self._sampled.shape[0]
            more = max(have, 4)
            self._sampled = torch.cat([self._sampled, self._sampled.new_zeros((more, self._sampled.shape[1]))])
            self._tokens = torch.cat([self._tokens, self._tokens.new_zeros((more, self._tokens.shape[1]))])
            self._free.extend(range(have + more - 1, have - 1, -1))
        return self._free.pop()

    def close(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def fill(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Begin a request anew, from tokens that the host knows; the prompt is not empty."""
        tokens = to_device([*prompt, *output], torch.int64, self._device)
        self._make_room(len(tokens))
        self._tokens[slot] = tokens[0]
        self._tokens[slot, : len(tokens)] = tokens
        ids = tokens[len(prompt) :]
        self._sampled[slot].zero_().index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def add(self, slots: Any, positions: Sequence[int], tokens: Any) -> None:
        """Add one sampled token each.

        Args:
            slots: [n], all different, on the device.
            positions: n indices of the tokens in their requests.
            tokens: [n] ids, on the device.
        """
        self._make_room(max(positions) + 1)
        self._sampled[slots, tokens] += 1
        self._tokens[slots, to_device(positions, torch.int64, self._device)] = tokens

    def apply(self, logits: Any, rows: Any, slots: Any, length: int, penalties: Any) -> None:
        """Change logits in place.

        A token that was seen, prompt included, has its logit divided by the repetition penalty if positive, else
        multiplied by it (Keskar et al. 2019); then each time that a token was sampled takes the frequency penalty from
        its logit, and having been sampled at all takes the presence penalty (OpenAI's definition).

        Args:
            logits: [S, V].
            rows, slots: [n] indices.
            length: tokens of the longest of these requests.
            penalties: [3, n, 1]: repetition, frequency, presence.
        """
        repetition, frequency, presence = penalties
        ids = self._tokens[slots, :length]
        # A token that comes twice in here is written twice, with the same value.
        where = (rows[:, None], ids)
        seen = logits[where]
        sampled = self._sampled[slots[:, None], ids]
        seen = torch.where(seen > 0, seen / repetition, seen * repetition)
        logits[where] = seen - frequency * sampled - presence * (sampled > 0)

    def _make_room(self, length: int) -> None:
        """See to it that requests of so many tokens fit."""
        have = self._tokens.shape[1]
        if length > have:
            more = self._tokens[:, :1].expand(-1, max(length - have, have))
            self._tokens = torch.cat([self._tokens, more], dim=1)
