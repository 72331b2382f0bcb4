"""What is served, and its tokens: `/v1/models`, `/tokenize`, `/detokenize`."""

from fastapi import APIRouter

from onbeat_engine.server.errors import RESPONSES
from onbeat_engine.server.request_bodies import DetokenizeRequest, TokenizeRequest
from onbeat_engine.server.response_bodies import DetokenizedText, Model, ModelList, Tokens
from onbeat_engine.server.serving import Serving
from onbeat_engine.wire.errors import BadRequest


def router(serving: Serving) -> APIRouter:
    """Return the endpoints."""
    routes = APIRouter(responses={code: RESPONSES[code] for code in (400, 401, 404, 408, 413)})

    def model(name: str) -> Model:
        return Model(id=name, created=serving.created, max_model_len=serving.engine.max_model_len)

    @routes.get("/v1/models")
    async def list_models() -> ModelList:
        """List the names of the model."""
        return ModelList(data=[model(name) for name in serving.config.served_model_names])

    @routes.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> Model:
        """Look one name up."""
        serving.check_model(name)
        return model(name)

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> Tokens:
        """Return the token ids of a prompt, or of messages."""
        serving.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise BadRequest("send either prompt or messages", "prompt")
        if body.messages is not None:
            ids = await serving.encode_chat(body.messages, add_generation_prompt=body.add_generation_prompt)
        else:
            [ids] = await serving.encode([body.prompt or ""], add_special_tokens=body.add_special_tokens)
        return Tokens(count=len(ids), max_model_len=serving.engine.max_model_len, tokens=ids)

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizedText:
        """Return the text of token ids."""
        serving.check_model(body.model)
        vocabulary = serving.engine.tokenizer.vocab_size
        strange = [token for token in body.tokens if not 0 <= token < vocabulary]
        if strange:
            raise BadRequest(f"tokens has ids outside the vocabulary of {vocabulary}: {strange[:5]}", "tokens")
        return DetokenizedText(prompt=serving.engine.tokenizer.decode(body.tokens, skip_special_tokens=False))

    return routes
