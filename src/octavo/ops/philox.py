"""Counter-based random numbers: the same (seed, choice, position) gives the same number anywhere, in any order."""

from __future__ import annotations

from typing import Final

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_MASK: Final = 0xFFFFFFFF
_NUM_ROUNDS: Final = 10

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Philox4x32-10: four random 32-bit words of a counter and a key.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; checked against its known answers.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """The random number of one output token, in [0, 1), with all 53 bits a float64 holds there."""
    key = (seed & _MASK, (seed >> 32) & _MASK)
    r0, r1, _, _ = philox4x32((position & _MASK, choice & _MASK, 0, 0), key)
    return float((r0 << 21) ^ (r1 >> 11)) * 2.0**-53
