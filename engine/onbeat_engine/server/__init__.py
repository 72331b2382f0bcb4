"""The OpenAI-compatible front end: FastAPI on uvicorn, over an async engine."""
