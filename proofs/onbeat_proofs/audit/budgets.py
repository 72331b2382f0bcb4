"""How much an audit explores: what each budget buys."""

from math import inf
from typing import NamedTuple

from onbeat_proofs.audit.results import Budget


class Limits(NamedTuple):
    """What a budget buys."""

    depth: int
    """Which of a scope's depths."""
    operations: int
    """Most operations in one scope."""
    drains: int
    """States of one scope that are brought to rest."""
    histories: int
    shrink_s: float
    """CPU seconds for one finding, at most twice."""
    compare_steps: int | None
    """Steps of a scenario of the suite before which two runs are compared."""
    seconds: float = inf
    """CPU seconds for all checks together; what is not reached by then is cut off, and said to be."""
    shrink_all_s: float = 30.0
    """CPU seconds for all findings together, after which each is only cut where it shows what it shows."""
    base_s: float = 30.0
    """CPU seconds for runs on the base of a class, where what is inherited is set apart."""


LIMITS: dict[Budget, Limits] = {
    "quick": Limits(0, 15_000, 50, 120, 1.0, 20, inf),
    "standard": Limits(1, 100_000, 200, 1200, 3.0, 100, inf, 150.0, 150.0),
    "deep": Limits(2, 1_000_000, 1000, 10_000, 10.0, None, inf, 1500.0, 1500.0),
}
LIMITS_OF_OTHERS: dict[Budget, Limits] = {
    "quick": Limits(0, 1_200, 10, 40, 0.7, 10, 35.0),
    "standard": Limits(1, 8_000, 50, 300, 3.0, 50, 220.0, 150.0, 150.0),
    "deep": Limits(2, 100_000, 500, 4000, 15.0, None, 3600.0, 1500.0, 1500.0),
}
"""The same for families whose schedulers are real, and cost accordingly."""
