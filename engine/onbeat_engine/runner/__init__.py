"""Executes a rank's steps with a real model: batches, KV cache, attention, sampling."""
