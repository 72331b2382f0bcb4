"""`POST /v1/chat/completions`."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from onbeat_engine.server.engine import ServedChoice
from onbeat_engine.server.errors import GENERATING
from onbeat_engine.server.jobs import ClientGone, Job, Work
from onbeat_engine.server.request_bodies import ChatRequest
from onbeat_engine.server.response_bodies import ChatChoice, ChatCompletion, ChatMessage
from onbeat_engine.server.routes import logprobs
from onbeat_engine.server.serving import EventStream, Serving, Whole, gather
from onbeat_engine.wire.errors import BadRequest
from onbeat_engine.wire.params import SamplingParams

STREAM = {"description": "The answer, or a stream of events", "content": {"text/event-stream": {}}}


def router(serving: Serving) -> APIRouter:
    """Return the endpoint."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", response_model=ChatCompletion, responses={**GENERATING, 200: STREAM})
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        serving.check_model(body.model)
        params = chat_params(body)
        prompt = await serving.encode_chat(
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs,
        )
        work = Work("chatcmpl", [prompt], params, body.priority, body.cache_salt or "")
        job = await serving.jobs.start(work, request.receive)
        answer = ChatAnswer(serving, body, job)
        if body.stream:
            return EventStream(job, answer.chunks, head=answer.head, include_usage=body.include_usage)
        try:
            return answer.whole(await gather(job))
        except ClientGone:
            return Response(status_code=499)

    return routes


def chat_params(body: ChatRequest) -> SamplingParams:
    """Return how to sample.

    Raises:
        BadRequest: a value is out of range, or asks for what is not served.
    """
    if body.tools and body.tool_choice != "none":
        raise BadRequest("tools are not served; leave them out, or send tool_choice 'none'", "tools")
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs to be true", "top_logprobs")
    return body.params(
        max_tokens=body.max_completion_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


class ChatAnswer:
    """One answer, as a whole or in chunks."""

    def __init__(self, serving: Serving, body: ChatRequest, job: Job) -> None:
        self.body = body
        self.head: dict[str, Any] = {
            "id": job.id,
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": serving.model,
        }
        self.opened: set[int] = set()

    def chunks(self, index: int, choice: ServedChoice) -> Sequence[Mapping[str, Any]]:
        """Return the chunks for what is new of a choice; its first one tells the role."""
        chunks = []
        if index not in self.opened:
            self.opened.add(index)
            chunks.append({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        told = None
        if self.body.logprobs and choice.token_ids:
            top = self.body.top_logprobs or 0
            told = logprobs.chat(choice.token_ids, choice.logprobs or (), top).model_dump()
        if choice.text or told or choice.finish_reason is not None:
            chunk: dict[str, Any] = {
                "index": index,
                "delta": {"content": choice.text} if choice.text else {},
                "logprobs": told,
                "finish_reason": choice.finish_reason,
            }
            if choice.finish_reason is not None:
                chunk["stop_reason"] = choice.stop_reason
            chunks.append(chunk)
        return chunks

    def whole(self, whole: Whole) -> Response:
        """Return the answer to a request without a stream."""
        top = self.body.top_logprobs or 0
        choices = [
            ChatChoice(
                index=index,
                message=ChatMessage(content=choice.text),
                logprobs=logprobs.chat(choice.token_ids, choice.logprobs, top) if self.body.logprobs else None,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
            )
            for index, choice in enumerate(whole.choices)
        ]
        told = None if self.body.prompt_logprobs is None else logprobs.prompt(whole.prompt_logprobs[0])
        answer = ChatCompletion(**self.head, choices=choices, usage=whole.usage, prompt_logprobs=told)
        return Response(answer.model_dump_json(), media_type="application/json")
