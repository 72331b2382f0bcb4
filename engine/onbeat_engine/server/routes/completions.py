"""`POST /v1/completions`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from onbeat_engine.server.engine import ServedChoice, ServedLogprobs
from onbeat_engine.server.errors import GENERATING
from onbeat_engine.server.jobs import ClientGone, Job, Work
from onbeat_engine.server.request_bodies import CompletionRequest, Prompt
from onbeat_engine.server.response_bodies import Completion, CompletionChoice, CompletionLogprobs
from onbeat_engine.server.routes import logprobs
from onbeat_engine.server.serving import EventStream, Gathered, Serving, Whole, gather
from onbeat_engine.wire.errors import BadRequest

MAX_PROMPTS = 1024
STREAM = {"description": "The completion, or a stream of events", "content": {"text/event-stream": {}}}


def router(serving: Serving) -> APIRouter:
    """Return the endpoint."""
    routes = APIRouter()

    @routes.post("/v1/completions", response_model=Completion, responses={**GENERATING, 200: STREAM})
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        serving.check_model(body.model)
        if body.suffix:
            raise BadRequest("suffix is not served: the model continues a text, it does not fill one in", "suffix")
        if body.stream and body.echo and body.logprobs is not None:
            raise BadRequest("echo with logprobs is not for streams", "echo")
        prompts = await serving.encode(split(body.prompt), add_special_tokens=body.add_special_tokens)
        only_prompt = body.max_tokens == 0 and body.echo  # nothing is to be generated, and a step samples one
        params = body.params(
            max_tokens=1 if only_prompt else None,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo and body.prompt_logprobs is None else None,
        )
        work = Work("cmpl", prompts, params, body.priority, body.cache_salt or "", only_prompt)
        job = await serving.jobs.start(work, request.receive)
        answer = CompletionAnswer(serving, body, job)
        if body.stream:
            return EventStream(job, answer.chunks, head=answer.head, include_usage=body.include_usage)
        try:
            return answer.whole(await gather(job))
        except ClientGone:
            return Response(status_code=499)

    return routes


def split(prompt: Prompt) -> Sequence[str | list[int]]:
    """Return the prompts that a request holds.

    Raises:
        BadRequest: none, or too many.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise BadRequest("prompt is an empty list", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_PROMPTS:
        raise BadRequest(f"{len(prompt)} prompts; at most {MAX_PROMPTS} in one request", "prompt")
    return prompt


class CompletionAnswer:
    """One answer, as a whole or in chunks."""

    def __init__(self, serving: Serving, body: CompletionRequest, job: Job) -> None:
        self.tokenizer = serving.engine.tokenizer
        self.body = body
        self.prompts = job.work.prompts
        self.n = job.work.params.n
        self.only_prompt = job.work.only_prompt
        self.head: dict[str, Any] = {
            "id": job.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": serving.model,
        }
        self.echoed = [self.tokenizer.decode(prompt) if body.echo else "" for prompt in self.prompts]
        self.offsets: dict[int, int] = {}
        """By choice that chunks were made of: characters of its tokens so far."""

    def chunks(self, index: int, choice: ServedChoice) -> Sequence[Mapping[str, Any]]:
        """Return the chunk for what is new of a choice; none if nothing is."""
        text, ids = choice.text, choice.token_ids
        if self.only_prompt:
            text, ids = "", []
        if index not in self.offsets:
            self.offsets[index] = 0
            text = self.echoed[index // self.n] + text
        told = None
        if self.body.logprobs is not None and ids:
            told = self._logprobs(ids, choice.logprobs or (), self.offsets[index])
            self.offsets[index] += sum(map(len, told.tokens))
        if not text and told is None and choice.finish_reason is None:
            return []
        return [
            {
                "index": index,
                "text": text,
                "logprobs": told and told.model_dump(),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
            }
        ]

    def whole(self, whole: Whole) -> Response:
        """Return the answer to a request without a stream."""
        choices = [
            self._choice(index, choice, whole.prompt_logprobs[index // self.n])
            for index, choice in enumerate(whole.choices)
        ]
        answer = Completion(**self.head, choices=choices, usage=whole.usage)
        return Response(answer.model_dump_json(), media_type="application/json")

    def _choice(
        self, index: int, choice: Gathered, of_prompt: Sequence[ServedLogprobs | None] | None
    ) -> CompletionChoice:
        text, ids, chances = choice.text, choice.token_ids, list[ServedLogprobs | None](choice.logprobs)
        if self.only_prompt:
            text, ids, chances = "", [], []
        if self.body.echo and of_prompt is not None:
            ids, chances = [*self.prompts[index // self.n], *ids], [*of_prompt, *chances]
        return CompletionChoice(
            index=index,
            text=self.echoed[index // self.n] + text,
            logprobs=None if self.body.logprobs is None else self._logprobs(ids, chances, 0),
            finish_reason="length" if self.only_prompt else choice.finish_reason,
            stop_reason=choice.stop_reason,
            prompt_logprobs=None if self.body.prompt_logprobs is None else logprobs.prompt(of_prompt),
        )

    def _logprobs(
        self, ids: Sequence[int], chances: Sequence[ServedLogprobs | None], offset: int
    ) -> CompletionLogprobs:
        return logprobs.completion(ids, chances, lambda token: self.tokenizer.decode([token]), offset)
