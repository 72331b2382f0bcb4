"""A model with random weights, and a tokenizer with a chat template, in a folder."""

from pathlib import Path

from tests.engine.runner.models.tiny import llama
from tests.engine.text.tiny import SPECIALS, backend, write_folder

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['role'] }}: {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant: {% endif %}"
)


def write(folder: Path) -> Path:
    """Write them; return the folder."""
    llama(folder, vocab_size=264, max_position_embeddings=4096, eos_token_id=257)
    config = {"chat_template": TEMPLATE, "bos_token": SPECIALS[0], "eos_token": SPECIALS[1]}
    return write_folder(folder, backend(), tokenizer_config=config)
