"""Checks of the data-parallel protocol: all interleavings of small groups, and theorems for groups of any size."""
