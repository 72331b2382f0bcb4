"""Mutants that change nothing."""

EQUIVALENT: dict[str, str] = {}
