"""Whether uploads are integers or floating-point numbers, also where a file leaves it open.

Fresh noise is of integers wherever uploads can be: its lowest bits then tell nothing about what it
hides. Seeded noise is for research, and of floating-point numbers unless the file says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.protocol.values import Protocol


def sends_integers(protocol: Protocol) -> bool:
    """Returns whether uploads are integers under discrete noise.

    They always are where sums are secure, since only integers can be masked.

    Args:
        protocol: The federation, as its file describes it.

    Example:
        >>> from sordino.protocol import Constant, FedAvg, Gaussian, Protocol
        >>> local = FedAvg(steps=5, batch=32, clip=1.0, schedule=Constant(rate=0.1))
        >>> noises = (Gaussian(sigma=1.0), Gaussian(sigma=1.0, secure=True))
        >>> plans = [Protocol(clients=5, rounds=6, local=local, noise=noise) for noise in noises]
        >>> [sends_integers(plan) for plan in plans]
        [False, True]
    """
    if protocol.channel.sums_only:
        return True
    if leaves_arithmetic_open(protocol):
        return protocol.noise.secure and has_integer_form(protocol)
    return protocol.noise.arithmetic == "integers"


def leaves_arithmetic_open(protocol: Protocol) -> bool:
    """Returns whether neither the noise nor the channel says how noise is drawn.

    Args:
        protocol: The federation, as its file describes it.
    """
    noise = protocol.noise
    return noise.normal and noise.arithmetic is None and not protocol.channel.sums_only


def has_integer_form(protocol: Protocol) -> bool:
    """Returns whether uploads with normal noise can be integers; what cannot is also refused them.

    Args:
        protocol: The federation, as its file describes it.
    """
    noise = protocol.noise
    # Without noise there is nothing whose bits could tell anything.
    silent = noise.normal and noise.client_sigma == 0 and not noise.multiplier
    return (
        not silent
        and noise.where == "client"
        and not protocol.personalization.keeps_models
        and not protocol.client
        and not protocol.local.noise_in_steps
    )


def state_integers(protocol: Protocol) -> Protocol:
    """Returns the protocol with its arithmetic spelled out, where that is integers.

    What a run or a client keeps says so, since files of earlier versions that leave it open mean
    floating-point numbers.

    Args:
        protocol: the protocol.
    """
    return _settle(protocol, "integers")


def read_as_kept(protocol: Protocol) -> Protocol:
    """Returns a protocol that was read from what a run or a client keeps.

    Args:
        protocol: as it was read.
    """
    # Written before integers were the default: its noise was of floating-point numbers.
    return _settle(protocol, "floats")


def draw_alike(changed: Protocol, original: Protocol) -> Protocol:
    """Returns a changed protocol whose noise is drawn as the original's.

    Args:
        changed: the protocol, without what forbade integers.
        original: the protocol that is run.
    """
    return changed if sends_integers(original) else _settle(changed, "floats")


def _settle(protocol: Protocol, arithmetic: str) -> Protocol:
    """Spells out the arithmetic of a protocol that has integers by default."""
    if not leaves_arithmetic_open(protocol) or not sends_integers(protocol):
        return protocol
    return replace(protocol, noise=protocol.noise.set_arithmetic(arithmetic))
