"""How one request samples. Names and defaults are vLLM's."""

from typing import Any, NoReturn

import msgspec

from onbeat_engine.wire.errors import BadRequest

MAX_LOGPROBS = 20
"""Most alternatives per position that a request may ask for."""
MAX_STOP_STRINGS = 16


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What the text has to be; exactly one is set."""

    json_schema: dict[str, Any] | None = None
    json_object: bool = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample, and when to stop.

    Args:
        n: completions of one prompt; the i-th is seeded with seed + i (case B102).
        temperature: 0 is greedy.
        top_k: 0 or -1: all tokens.
        seed: the same tokens whatever else is in the batch; None: another seed each time.
        stop: strings that end the text, or one; they are not part of it unless `include_stop_str_in_output`.
        stop_token_ids: tokens that end it, beside the model's own end tokens.
        max_tokens: None: as many as the model has room for.
        logprobs: alternatives told for each sampled token; None: no log probabilities at all.
        prompt_logprobs: the same for each token of the prompt.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    skip_special_tokens: bool = True
    structured: StructuredOutput | None = None

    def __post_init__(self) -> None:
        """Refuse values out of range. Lists become tuples, one stop string becomes one of one.

        Raises:
            BadRequest: with the field's name and value.
        """
        stop, biases = self._given("stop"), self._given("logit_bias")
        msgspec.structs.force_setattr(self, "stop", (stop,) if isinstance(stop, str) else self._tuple("stop"))
        msgspec.structs.force_setattr(self, "stop_token_ids", self._tuple("stop_token_ids"))
        if biases is None:
            msgspec.structs.force_setattr(self, "logit_bias", {})
        elif not isinstance(biases, dict) or not all(_within(-100, bias, 100) for bias in biases.values()):
            self._refuse("logit_bias", "biases between -100 and 100, by token id")
        self._between("n", 1, 128)
        self._between("presence_penalty", -2.0, 2.0)
        self._between("frequency_penalty", -2.0, 2.0)
        self._between("repetition_penalty", 1e-3, 1e3)
        self._between("temperature", 0.0, 100.0)
        self._between("top_p", 1e-9, 1.0)
        self._between("min_p", 0.0, 1.0)
        self._between("top_k", -1, 1 << 31)
        self._between("min_tokens", 0, 1 << 31)
        if self.seed is not None:
            self._between("seed", -(1 << 63), (1 << 63) - 1)
        if self.max_tokens is not None:
            self._between("max_tokens", 1, 1 << 31)
            if self.min_tokens > self.max_tokens:
                self._refuse("min_tokens", f"at most max_tokens, which is {self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._between(name, 0, MAX_LOGPROBS)
        stops = self._given("stop")
        if len(stops) > MAX_STOP_STRINGS or not all(isinstance(each, str) and each for each in stops):
            self._refuse("stop", f"at most {MAX_STOP_STRINGS} strings, none of them empty")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < 1e-5

    def _between(self, name: str, low: float, high: float) -> None:
        if not _within(low, getattr(self, name), high):
            self._refuse(name, f"between {low} and {high}")

    def _given(self, name: str) -> Any:
        """Return a value of whatever type the caller gave."""
        return getattr(self, name)

    def _tuple(self, name: str) -> tuple[Any, ...]:
        value = self._given(name)
        if not isinstance(value, list | tuple | None):
            self._refuse(name, "a list")
        return tuple(value or ())

    def _refuse(self, name: str, rule: str) -> NoReturn:
        raise BadRequest(f"{name} is {getattr(self, name)!r}; it must be {rule}", name)


def _within(low: float, value: Any, high: float) -> bool:
    """Return whether a number is in a range; not-a-number is in none, nor is what is no number at all."""
    return isinstance(value, int | float) and low <= value <= high
