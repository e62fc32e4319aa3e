"""Joins shares of seeds, as pycryptodome's `Shamir.combine` does, in less time.

The library computes the coefficients again for every secret; here they are computed once for a set
of places. This is for the coordinator, which may know every seed that it joins: its time need not
hide them. Seeds are split by the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

# Elements of GF(2^128) are integers whose bits are coefficients, modulo x^128 + x^7 + x^2 + x + 1.
BITS = 128
REDUCTION = (1 << BITS) | 0b1000_0111
LOW = (1 << BITS) - 1
SHARE_BYTES = BITS // 8


def combine_shares(shares: Mapping[int, bytes]) -> bytes:
    """Returns the secret that was split into some shares.

    Args:
        shares: As many shares as the secret needs, by their places, which are counted from 1.

    Example:
        >>> combine_shares({1: bytes(15) + bytes([5])}).hex()[-2:]
        '05'
    """
    places = tuple(sorted(shares))
    secret = 0
    for place, coefficient in zip(places, find_coefficients(places), strict=True):
        secret ^= multiply(coefficient, int.from_bytes(shares[place]))
    return secret.to_bytes(SHARE_BYTES)


@lru_cache(maxsize=64)
def find_coefficients(places: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the factors by which the shares at some places add up to the secret.

    They are Lagrange's coefficients at 0: the product of x_m / (x_m - x_j) over all other places m.

    Args:
        places: The places of the shares, in ascending order.
    """
    product = 1
    for place in places:
        product = multiply(product, place)
    found = []
    for place in places:
        # It begins with the place itself, which the product above contains as well.
        divisor = place
        for other in places:
            if other != place:
                # A small factor: a multiplication takes as many steps as it has bits.
                divisor = multiply(divisor, other ^ place)
        found.append(multiply(product, invert(divisor)))
    return tuple(found)


def multiply(first: int, second: int) -> int:
    """Returns the product of two elements; the second one should be the smaller.

    Args:
        first: An element of the field.
        second: Another element.

    Example:
        >>> multiply(0b11, 0b101) == 0b1111
        True
    """
    product = 0
    while second:
        lowest = second & -second
        # Multiplying by a power of two is a shift, since no bits are carried.
        product ^= first * lowest
        second ^= lowest
    while product >> BITS:
        high = product >> BITS
        # Modulo the polynomial, x^128 equals x^7 + x^2 + x + 1.
        product &= LOW
        product ^= high ^ (high << 1) ^ (high << 2) ^ (high << 7)
    return product


def invert(element: int) -> int:
    """Returns the inverse of an element: their product is 1.

    Args:
        element: An element other than 0.

    Example:
        >>> multiply(invert(2), 2)
        1
    """
    # Euclid's algorithm: `factor * element` is `remainder` at every step, up to multiples of the
    # modulus.
    remainder, following = element, REDUCTION
    factor, next_factor = 1, 0
    while remainder != 1:
        shift = remainder.bit_length() - following.bit_length()
        if shift < 0:
            remainder, following = following, remainder
            factor, next_factor = next_factor, factor
            shift = -shift
        remainder ^= following << shift
        factor ^= next_factor << shift
    return factor
