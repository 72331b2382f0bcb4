"""An engine in the server's own loop, under the test's control."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from onbeat_engine.wire.errors import BadRequest, EngineDead, TryLater
from onbeat_engine.wire.lane_steps import Lanes, LaneStep
from onbeat_engine.wire.messages import RankStats
from onbeat_engine.wire.params import SamplingParams, StructuredOutput
from onbeat_spec.protocol import PauseMode

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class ByteTokenizer:
    """Tokens are bytes of UTF-8."""

    vocab_size = 256

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        if max_tokens is not None and len(text) > max_tokens:
            raise BadRequest(f"the text has {len(text)} tokens; at most {max_tokens} are taken", "prompt")
        try:
            return list(text.encode())
        except UnicodeError:
            raise BadRequest("the text is no Unicode", "prompt") from None

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", "replace")

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        text = ""
        for message in messages:
            content = message.get("content") or ""
            if not isinstance(content, str):
                if any(part.get("type") != "text" for part in content):
                    raise BadRequest("only text is read", "messages")
                content = "\n".join(str(part.get("text")) for part in content)
            text += f"<{message['role']}>{content}"
        return self.encode(text + "<assistant>" * add_generation_prompt, max_tokens=max_tokens)


@dataclass
class Chance:
    logprob: float
    rank: int
    decoded_token: str


@dataclass
class Choice:
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Chance]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None


@dataclass
class Out:
    outputs: list[Choice]
    finished: bool = False
    prompt_logprobs: list[dict[int, Chance] | None] | None = None
    num_cached_tokens: int = 0
    rank: int = 0


@dataclass
class Rank:
    rank: int = 0
    alive: bool = True


@dataclass
class StubEngine:
    """Writes the alphabet, a letter per step of `delay` seconds; choice k begins with its k-th letter."""

    delay: float = 0.0
    max_model_len: int = 100
    fail_after: int | None = None
    """Tokens after which a request fails."""
    dead: str | None = None
    is_running: bool = True
    is_paused: bool = False
    is_sleeping: bool = False
    silent: bool = False
    """No token ever comes."""
    last_progress: float = 0.0
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    num_held: int = 0
    compile_seconds: float = 0.0
    compiled: list[tuple[StructuredOutput, int]] = field(default_factory=list)
    """Schemas, and how many requests there had been then."""
    salts: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Ids of all requests."""
    admission: bool = True
    steps: int = 0
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    ranks: Sequence[Rank] = (Rank(),)

    @property
    def num_unfinished(self) -> int:
        return len(self.running)

    def generate(
        self,
        prompt: Sequence[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str = "",
        output_kind: Literal["delta"],
    ) -> "StubStream":
        if self.dead is not None:
            raise EngineDead(self.dead)
        if not prompt:
            raise BadRequest("the prompt has no tokens", "prompt")
        if len(prompt) >= self.max_model_len:
            raise BadRequest(f"the prompt has {len(prompt)} tokens; the model takes {self.max_model_len}", "prompt")
        if any(not 0 <= token < 256 for token in prompt):
            raise BadRequest("the prompt has ids outside the vocabulary", "prompt")
        if self.is_paused or not self.admission:
            raise TryLater("the engine is paused")
        self.running.add(request_id)
        self.seen.append(request_id)
        self.salts.append(cache_salt)
        return StubStream(self, request_id, list(prompt), sampling_params)

    async def compile_structured(self, structured: StructuredOutput) -> None:
        await asyncio.sleep(self.compile_seconds)
        self.compiled.append((structured, len(self.seen)))

    def lanes(self) -> Lanes:
        return Lanes({0: (LaneStep(0, 1, "decode", duration=0.001),)}, 2)

    def stats(self) -> list[RankStats]:
        return [RankStats(rank=0, running=len(self.running), violations={"no-empty-hold": 3})]

    def group_violations(self) -> dict[str, int]:
        return {"lock-step": 2}

    async def check_health(self) -> None:
        if self.dead is not None:
            raise EngineDead(self.dead)

    async def pause_generation(self, *, mode: PauseMode) -> None:
        self.is_paused = True

    async def resume_generation(self) -> None:
        self.is_paused = False

    async def sleep(self, *, mode: PauseMode) -> None:
        self.is_sleeping = True

    async def wake_up(self) -> None:
        self.is_sleeping = False

    async def reset_prefix_cache(self) -> bool:
        return not self.running

    def stop_admission(self) -> None:
        self.admission = False

    async def shutdown(self, timeout: float = 5.0) -> None:
        assert not self.running, "every request has ended before the engine is shut down"


class StubStream:
    def __init__(self, engine: StubEngine, request_id: str, prompt: list[int], params: SamplingParams) -> None:
        self.engine = engine
        self.id = request_id
        self.params = params
        self.room = engine.max_model_len - len(prompt)
        self.prompt = prompt
        self.outputs = self._outputs()

    def __aiter__(self) -> AsyncIterator[Out]:
        return self

    async def __anext__(self) -> Out:
        return await anext(self.outputs)

    async def aclose(self) -> None:
        await self.outputs.aclose()
        if self.id in self.engine.running:
            self.engine.running.discard(self.id)
            self.engine.aborted.append(self.id)

    async def _outputs(self) -> Any:
        count = min(self.params.max_tokens or self.room, self.room)
        told = self.params.logprobs is not None
        for step in range(count):
            await asyncio.sleep(self.engine.delay)
            while self.engine.silent:
                await asyncio.sleep(0.01)
            self.engine.steps += 1
            self.engine.last_progress = time.monotonic()
            if step == self.engine.fail_after:
                self.engine.running.discard(self.id)
                yield Out([Choice(0, "", [], finish_reason="error", error="planted failure")], finished=True)
                return
            last = step + 1 == count
            if last:
                self.engine.running.discard(self.id)
            of_prompt = None
            if self.params.prompt_logprobs is not None and step == 0:
                of_prompt = [None, *({token: Chance(-1.0, 1, chr(token))} for token in self.prompt[1:])]
            yield Out([self._choice(k, step, last, told) for k in range(self.params.n)], last, of_prompt)

    def _choice(self, k: int, step: int, last: bool, told: bool) -> Choice:
        letter = LETTERS[(k + step) % 26]
        chances = {ord(letter): Chance(-0.5, 1, letter), ord("!"): Chance(float("-inf"), 2, "!")}
        return Choice(k, letter, [ord(letter)], [chances] if told else None, "length" if last else None)
