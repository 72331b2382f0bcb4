"""Audits prefill delayers: decisions that every rank of a group takes over the rows of all ranks, pass by pass.

`rows.py` is what a rank brings to a pass, `decision.py` what decides, `sglang_file.py` and `sglang.py` run SGLang's own
class, `cadence.py` is ours in the same form. `graph.py` walks all states, `properties.py` judges, `theorems.py`
runs SGLang's function on symbolic ints, `audit.py` puts them together, and `job.py` keeps the caller alive.
"""
