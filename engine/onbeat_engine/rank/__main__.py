"""The command of one rank: `python -m onbeat_engine.rank`."""

from onbeat_engine.rank.process import run

run()
