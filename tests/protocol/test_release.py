"""What a protocol says leaves a client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from sordino.protocol import (
    Bezier,
    ClippedGlm,
    Constant,
    FedAvg,
    FedProx,
    Gaussian,
    InvalidValue,
    Laplace,
    NoisySgd,
    NoisySteps,
    NoisyUpload,
    Protocol,
    Scaffold,
    UnknownKind,
    dumps,
    loads,
)
from sordino.protocol.release import release_of

RATE = Constant(rate=0.1)
AVERAGED = FedAvg(steps=5, batch=8, clip=2.0, schedule=RATE)
NOISY = NoisySgd(steps=3, batch=8, clip=2.0, schedule=RATE)


@dataclass(frozen=True, kw_only=True)
class Nova(FedAvg):
    """A rule whose updates are longer than FedAvg's, as nobody has said anywhere."""

    tag = "nova"


def protocol(**given: Any) -> Protocol:
    return Protocol(
        **{"clients": 4, "rounds": 2, "local": AVERAGED, "noise": Gaussian(sigma=1.0), **given}
    )


@pytest.mark.parametrize(
    ("noise", "at_client", "at_server"),
    [
        (Gaussian(sigma=1.0), True, False),
        (Gaussian(sigma=1.0, where="server"), False, True),
        (Gaussian(sigma=1.0, where="both", server_sigma=2.0), True, True),
        (Laplace(scale=1.0, where="server"), False, True),
    ],
)
def test_an_upload_says_who_adds_noise(noise: Any, at_client: bool, at_server: bool) -> None:
    release = protocol(noise=noise).release
    assert isinstance(release, NoisyUpload)
    assert (release.at_client, release.at_server) == (at_client, at_server)
    assert release.noise == noise
    assert release.noise_draws == 1
    assert not release.in_steps


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_an_upload_says_what_is_clipped(kind: type[FedAvg]) -> None:
    rule = kind(steps=5, batch=8, clip=2.0, schedule=RATE, clip_norm="l1", clip_target="update")
    release = protocol(local=rule).release
    assert (release.clip, release.clip_norm, release.clips_update) == (2.0, "l1", True)
    assert not protocol(local=replace(rule, clip_target="step")).release.clips_update


def test_an_upload_says_whether_its_sender_is_known() -> None:
    assert protocol(channel="shuffler").release.shuffled
    assert not protocol().release.shuffled


@pytest.mark.parametrize(("sampling", "unit"), [("fixed", 4.0), ("poisson", 2.0)])
def test_noisy_steps_say_their_noise(sampling: str, unit: float) -> None:
    """A sum of gradients of norm at most 2 moves by 4 if a record is replaced, by 2 if one comes or goes."""
    release = protocol(
        local=replace(NOISY, sampling=sampling), noise=Gaussian(multiplier=1.5)
    ).release
    assert isinstance(release, NoisySteps)
    assert release.sum_noise.sigma == 1.5 * unit
    assert release.noise_draws == 3
    assert release.varying_batches == (sampling == "poisson")
    assert (release.at_client, release.at_server) == (True, False)


def test_every_rule_has_a_release() -> None:
    for kind in (FedProx, Bezier):
        extra = {"proximal": 0.1} if kind is FedProx else {}
        rule = kind(steps=1, batch=8, clip=2.0, schedule=RATE, **extra)
        given = replace(protocol().assumptions, smoothness=10.0)
        assert not protocol(local=rule, assumptions=given).release.in_steps
    glm = ClippedGlm(steps=1, clip=3.0, schedule=RATE, weight_decay=0.1)
    assert protocol(local=glm).release.clip == 3.0


def test_a_subclass_of_a_rule_is_no_such_rule() -> None:
    nova = Nova(steps=5, batch=8, clip=2.0, schedule=RATE)
    with pytest.raises(InvalidValue, match="expected one of FedAvg, FedProx"):
        protocol(local=nova)
    smuggled = protocol()
    object.__setattr__(smuggled, "local", nova)
    with pytest.raises(UnknownKind, match="no release is known for the local rule Nova"):
        release_of(smuggled)


def test_noise_in_steps_leaves_the_upload_alone() -> None:
    noise = Gaussian(multiplier=1.5)
    assert noise.sigma == 0.0
    assert replace(noise, multiplier=2.0) == Gaussian(multiplier=2.0)
    written = dumps(protocol(local=NOISY, noise=noise))
    assert "sigma" not in written
    assert loads(written).noise == noise


def test_noise_with_a_schedule_is_told_how_it_falls() -> None:
    text = dumps(protocol(local=NOISY, noise=Gaussian(multiplier=1.5)))
    text = text.replace("multiplier = 1.5", 'multiplier = 1.5\nschedule = { kind = "constant" }')
    with pytest.raises(InvalidValue, match=r"noise\.schedule = .*mixing = \{ kind"):
        loads(text)


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_a_file_gives_one_size_of_noise(sigma: float) -> None:
    text = dumps(protocol(local=NOISY, noise=Gaussian(multiplier=1.5)))
    text = text.replace("multiplier = 1.5", f"multiplier = 1.5\nsigma = {sigma}")
    with pytest.raises(
        InvalidValue, match=r"noise\.multiplier = 1\.5: expected no such key together with sigma"
    ):
        loads(text)
