"""The random numbers."""

import math

from onbeat_engine.runner.sampling.noise import uniform


def test_known_values() -> None:
    """SplitMix64's first output for state 0 is 0xE220A8397B1DCDAF; it is the state's own hash here."""
    first = 0xE220A8397B1DCDAF
    state = (first + 0x9E3779B97F4A7C15) % 2**64  # position 0 adds one step
    mixed = (state + 0x9E3779B97F4A7C15) % 2**64  # and so does the generator
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
    assert uniform(0, 0) == ((mixed ^ mixed >> 31) >> 12) / 2**52


def test_range_and_independence() -> None:
    for seeds, positions in ((range(4000), (0,)), ((7,), range(4000)), (range(-32, 32), range(64))):
        values = [uniform(seed, position) for seed in seeds for position in positions]
        assert all(0 <= value < 1 for value in values)
        assert len(set(values)) == len(values)
        counts = [0] * 16
        for value in values:
            counts[int(value * 16)] += 1
        expected = len(values) / 16
        assert sum((count - expected) ** 2 / expected for count in counts) < 37.7  # chi-square, 15 degrees, 0.1 %


def test_neighbours_are_not_correlated() -> None:
    """Seeds of the choices of one request follow each other (case B102)."""
    pairs = [(uniform(seed, 3) - 0.5, uniform(seed + 1, 3) - 0.5) for seed in range(10_000)]
    correlation = sum(a * b for a, b in pairs) / len(pairs) * 12
    assert abs(correlation) < 4 / math.sqrt(len(pairs))


def test_any_seed() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)
    assert uniform(-(2**63), 0) != uniform(2**63 - 1, 0)
