"""Runs any Python on symbolic ints and bools, path by path. Knows nothing of schedulers.

`explore` is the door; `terms` are the values, `solver` is Z3 behind them, `paths` the way from one path to the next.
"""

from onbeat_proofs.symbolic.run import Context, explore, frontier, smallest, where

__all__ = ["Context", "explore", "frontier", "smallest", "where"]
