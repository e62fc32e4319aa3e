"""How much noise there is, as one number that a search can turn: more of it never reveals more."""

from __future__ import annotations

from dataclasses import replace

from sordino.protocol import Custom, Gaussian, Laplace, Noise, Staircase

STEEPEST = 700.0  # largest step of a staircase: e^step is still a number
PARAMETERS = {Gaussian: "sigma", Laplace: "scale", Staircase: "step", Custom: "scale"}


def size_of(noise: Noise) -> float:
    """Sigma, multiplier or scale; for a staircase width / step, the scale of the Laplace noise that it approaches.

    Example:
        >>> size_of(Staircase(step=2.0, width=1.0))
        0.5
    """
    return noise.width / noise.step if isinstance(noise, Staircase) else parameter(noise)[1]


def size_in_words(noise: Noise) -> str:
    """What that number is called."""
    return "width / step" if isinstance(noise, Staircase) else parameter(noise)[0]


def resized(noise: Noise, size: float) -> Noise:
    """The same kind of noise in another size; a staircase keeps its width and changes its step.

    Example:
        >>> resized(Staircase(step=2.0, width=1.0), 0.25).step, resized(Gaussian(sigma=1.0), 3.0).sigma
        (4.0, 3.0)
    """
    if isinstance(noise, Gaussian):
        return (
            replace(noise, sigma=size)
            if noise.multiplier is None
            else replace(noise, multiplier=size)
        )
    if isinstance(noise, Staircase):
        return replace(noise, step=min(STEEPEST, noise.width / size))
    return replace(noise, scale=size)


def parameter(noise: Noise) -> tuple[str, float]:
    """The entry of the file that says the size, and its value.

    Example:
        >>> parameter(Laplace(scale=0.5))
        ('scale', 0.5)
    """
    name = (
        "multiplier"
        if isinstance(noise, Gaussian) and noise.multiplier is not None
        else PARAMETERS[type(noise)]
    )
    return name, getattr(noise, name)
