"""Scenario files: what can be done to a scheduler and expected of it, read strictly, written, and made small."""
