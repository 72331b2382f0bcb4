"""Theorems about groups of any size, and about load balancing."""
