"""The randomness of a sampled token: one number, which depends on the request's seed and the token's position alone."""

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio."""


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1), a multiple of 2**-52.

    So it is the same on every device, at every place in a batch and after every preemption. Not a multiple of 2**-53:
    the largest, times any float64 total, has to stay below that total.

    Args:
        seed: any 64-bit integer, signed or not.
        position: index of the token in its request, prompt included.
    """
    return (_mix(_mix(seed) + (position + 1) * _STEP) >> 12) * 2.0**-52


def _mix(value: int) -> int:
    """Return the output of SplitMix64 for a state (Steele, Lea, Flood 2014), 64 bits."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
