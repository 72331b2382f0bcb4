"""A model's files: where they are, and how a GGUF file is opened."""
