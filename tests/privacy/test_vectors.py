"""Every reference value of the theory, computed independently of this project, through one table from name to function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sordino.mechanisms.laplace_noise import laplace_divergence, laplace_divergence_l2
from sordino.mechanisms.staircase_density import StaircaseDensity
from sordino.papers import convergent, prifedsync, udp_fl
from sordino.privacy import sensitivity
from sordino.privacy.amplification import (
    bounded_domain,
    contraction,
    last_iterate,
    shuffling,
    subsampling,
)
from sordino.privacy.certify import certify
from sordino.privacy.curves import gaussian, mixtures, renyi
from sordino.protocol import (
    Constant,
    Data,
    FedAvg,
    Gaussian,
    Grid,
    Model,
    Protocol,
    SecureAggregation,
)
from tests.oracles import amplification, clones, convergent_dp, conversions, stretches
from tests.privacy.reference import reference_vectors

VECTORS = reference_vectors()


@dataclass(frozen=True, kw_only=True)
class OtherGrid(Grid):
    """A grid whose noise has any parameter: Sordino draws those of a ladder, references have others."""

    width: float

    @property
    def parameter(self) -> float:
        return self.width


def price_sum(shift: float, sigma: float, honest: int, d: int, scale: float) -> float:
    """Returns mu against a server that learns the sums of one round, as `certify` finds it."""
    protocol = Protocol(
        clients=honest,
        rounds=1,
        local=FedAvg(steps=1, batch=1, clip=shift / 2, schedule=Constant(rate=1.0)),
        noise=Gaussian(sigma=sigma),
        channel=SecureAggregation(threshold=honest),
        model=Model(name="mlp", parameters=d),
    )
    grid = OtherGrid(scale=scale, digits=1, bits=64, contributions=honest, width=sigma * scale)
    # In the place of what is computed from the protocol when it is first asked for.
    protocol.__dict__["grid"] = grid
    found = certify(protocol, "server", "client").mu
    assert found is not None
    return found


def price_integers(shift: float, sigmas: list[float]) -> float:
    # In grid steps, of one number: rounding moves it by one step of the shift.
    return price_sum(shift - 1, sigmas[0], len(sigmas), 1, 1.0)


def staircase(args: dict[str, Any]) -> StaircaseDensity:
    return StaircaseDensity(step=args["lam"], width=args["Delta"], nu=args["nu"])


def divergence(mechanism: str, params: dict[str, float]) -> Callable[[float], float]:
    return {
        "gaussian": lambda order: gaussian.rdp(params["s"] / params["sigma"], order),
        "laplace": lambda order: laplace_divergence(order, params["s"], params["b"]),
        "staircase": lambda order: staircase(params).divergence(order, params["s"]),
    }[mechanism]


def upload(etas: list[float], V: float, batch: int, alpha: float = 0.0) -> float:
    assert batch == 1, (
        "a smaller sensitivity for larger batches needs a vouched smoothness (docs/theory.md#a8)"
    )
    return sensitivity.bound_upload(etas, V, proximal=alpha)


def last(
    rho: list[float] | None = None,
    gamma: list[float] | None = None,
    d0: float = 0.0,
    a: float = 0.0,
    T: int = 0,
) -> float:
    if rho is None:
        rounds = np.arange(1, T + 1)
        return last_iterate.last_iterate(1 + a / rounds, 1 / rounds)
    return last_iterate.last_iterate(rho, gamma, d0)


def threat(
    s: list[float],
    sigma: float,
    m: int,
    adversary: str,
    k: int,
    rho: list[float] | None,
    D: float | None,
) -> float:
    if adversary == "final":
        shares = np.array(s) / m
        energy = (
            last_iterate.last_iterate(rho, shares)
            if D is None
            else bounded_domain.last_iterate_bounded(rho, shares, D)[0]
        )
        return math.sqrt(m * energy) / sigma
    assert len(set(s)) == 1
    local = FedAvg(steps=1, batch=1, clip=s[0] / 2, schedule=Constant(rate=1.0))
    protocol = Protocol(clients=m, rounds=len(s), local=local, noise=Gaussian(sigma=sigma))
    return certify(
        protocol, {"uploads": "server", "models": "rounds", "collude": f"coalition:{k}"}[adversary]
    ).mu


def glm(
    steps: int, eta: float, lam: float, beta: float, X: float, V: float
) -> tuple[float, np.ndarray]:
    rates = np.full(steps, eta)
    factors = contraction.step_factors(rates, decay=lam, curvature=beta, feature_norm=X)
    return float(np.prod(factors)), contraction.find_moves(rates, factors, V)


def glm_full(K: int, n_i: int, weight: float, **step: float) -> tuple[float, float]:
    rho, left = glm(K, **step)
    return rho, weight * float(contraction.move_full_batch(left, n_i))


def glm_cyclic(
    epochs: int, batches: int, B: int, weight: float, **step: float
) -> tuple[float, float]:
    rho, left = glm(epochs * batches, **step)
    return rho, weight * float(contraction.move_cyclic_batches(left, batches, B))


def subsampled_epsilon(
    B: float, n: float, steps: int, sigma: float, delta: float, h: float, p: float = 1.0, K: int = 1
) -> float:
    curve = subsampling.compose_fixed_rounds(
        mu=1 / sigma, rate=B / n, steps=K, rounds=steps // K, probability=p
    )
    return curve.epsilon(delta)


def hidden_batches(
    K: int, B: int, n: int, T: int, rate: float, V: float, sigma: float, m: int, delta: float,
    h: float | None = None,
) -> float:  # fmt: skip
    rule = FedAvg(steps=K, batch=B, clip=V, schedule=Constant(rate=rate))
    protocol = Protocol(
        clients=m,
        rounds=T,
        local=rule,
        noise=Gaussian(sigma=sigma),
        data=Data(name="digits", records=n),
    )
    return certify(protocol, "rounds", delta=delta).epsilon(delta)


FEDAVG = {
    "T": "rounds",
    "K": "steps",
    "mu": "rate",
    "V": "clip",
    "L": "smoothness",
    "m": "clients",
    "alpha": "proximal",
    "eta": "rate",
}


def words(args: dict[str, Any]) -> dict[str, Any]:
    return {FEDAVG.get(name, name): value for name, value in args.items()}


FORMULAS: dict[str, Callable[..., Any]] = {
    "gdp_delta": lambda mu, eps: gaussian.delta(mu, eps),
    "gdp_eps": lambda mu, delta: gaussian.epsilon(mu, delta),
    "gdp_mu_from_eps_delta": lambda eps, delta: gaussian.mu_from(eps, delta),
    "rdp_to_eps": lambda alpha, rdp, delta: renyi.convert_to_epsilon(alpha, rdp, delta),
    "rdp_to_eps_classic": lambda alpha, rdp, delta: conversions.to_epsilon_classic(
        alpha, rdp, delta
    ),
    "rdp_to_delta": lambda alpha, rdp, eps: conversions.to_delta(alpha, rdp, eps),
    "published_thm3a": lambda **args: convergent.theorem_3a(**words(args)),
    "published_thm3b": lambda **args: convergent.theorem_3b(**words(args)),
    "published_thm3c": lambda **args: convergent.theorem_3c(**words(args)),
    "published_thm3d": lambda **args: convergent.theorem_3d(**words(args)),
    "thm3d_min_z": lambda **args: convergent_dp.table_2_least_z(**words(args)),
    "thm3d_exact_H": lambda **args: convergent_dp.theorem_3d_energy(**words(args)),
    "published_thm4": lambda **args: convergent.theorem_4(**words(args)),
    "counterexample_fedavg": lambda **args: convergent_dp.linear_fedavg_mu(**words(args)),
    "counterexample_fedprox": lambda **args: convergent_dp.linear_fedprox_mu(**words(args)),
    "published_H0": convergent_dp.appendix_g3_energy,
    "upload_sensitivity_fedavg": upload,
    "upload_sensitivity_fedprox": upload,
    "rho_fedavg": lambda etas, L: stretches.fedavg_expansion(etas, L),
    "rho_fedprox": lambda etas, L, alpha: stretches.fedprox_expansion(etas, L, alpha),
    "rho_fedprox_convex": lambda etas, lam, M, alpha: stretches.fedprox_contraction(
        etas, strong=lam, smoothness=M, proximal=alpha
    ),
    "last_iterate_H": last,
    "last_iterate_H_const": lambda rho, gamma, T: last_iterate.price_constant_rounds(rho, gamma, T),
    "last_iterate_H_bounded": lambda rho, gamma, D: bounded_domain.last_iterate_bounded(
        rho, gamma, D
    ),
    "threat_mu": threat,
    "glm_rho_gamma": glm_full,
    "glm_rho_gamma_cyclic": glm_cyclic,
    "laplace_rdp_1d": lambda alpha, s, b: laplace_divergence(alpha, s, b),
    "laplace_rdp_l2": lambda alpha, c, b, d: laplace_divergence_l2(alpha, c, b, d),
    "staircase_rdp_1d": lambda alpha, s, **noise: staircase(noise).divergence(alpha, s),
    "staircase_rdp_any_shift": lambda alpha, s, **noise: staircase(noise).divergence(alpha, s),
    "staircase_pi": lambda s, **noise: staircase(noise).jump_probability(s),
    "staircase_rdp_l1": lambda alpha, c, d, **noise: staircase(noise).divergence_l1(alpha, c, d),
    "staircase_rdp_l2": lambda alpha, c, d, **noise: staircase(noise).divergence_l2(alpha, c, d),
    "staircase_kappa": lambda alpha, **noise: staircase(noise).slope(alpha),
    "staircase_moments": lambda **noise: staircase(noise).moments(),
    "staircase_exact_eps": lambda delta, c, d, rounds, **noise: staircase(noise).epsilon_at_least(
        delta, clip=c, dimension=d, rounds=rounds
    ),
    "published_staircase_gamma": lambda alpha, lam, nu: udp_fl.theorem_2(
        order=alpha, step=lam, nu=nu
    ),
    "poisson_rdp_symmetric": lambda alpha, q, mechanism, params: renyi.amplify_divergence(
        alpha, q, divergence(mechanism, params)
    ),
    "poisson_rdp_zhu_wang": lambda alpha, q, mechanism, params: amplification.zhu_wang(
        alpha, q, divergence(mechanism, params)
    ),
    "wor_rdp_wbk": lambda alpha, q, mechanism, params, eps_inf=math.inf: (
        amplification.wang_balle_kasiviswanathan(
            alpha, q, divergence(mechanism, params), largest_loss=eps_inf
        )
    ),
    "shuffled_rr_rdp": lambda alpha, eps0, n: udp_fl.shuffled_randomized_response(
        order=alpha, local=eps0, clients=n
    ),
    "published_shuffle_upper": lambda alpha, gamma, N: udp_fl.lemma_2(
        order=alpha, gamma=gamma, clients=N
    ),
    "published_shuffle_lower": lambda alpha, gamma, N: udp_fl.lemma_3(
        order=alpha, gamma=gamma, clients=N
    ),
    "girgis_rdp_upper": lambda alpha, eps0, n: amplification.girgis(
        order=alpha, local=eps0, clients=n
    ),
    "clones_rdp": lambda alpha, eps0, n: clones.clones_rdp(alpha, local=eps0, clients=n),
    "clones_delta": lambda eps, eps0, n: shuffling.find_shuffled_delta(eps, local=eps0, clients=n),
    "clones_eps": lambda delta, eps0, n: shuffling.find_shuffled_epsilon(
        delta, local=eps0, clients=n
    ),
    "clones_eps_closed_form": lambda delta, eps0, n: amplification.clones_closed_form(
        delta=delta, local=eps0, clients=n
    ),
    "clones_delta_approx": lambda eps, eps0, delta0, n: clones.delta_approximate(
        eps, local=eps0, local_delta=delta0, clients=n
    ),
    "clt_mu": lambda B, n, K, R, sigma: prifedsync.theorem_2_limit(
        batch=B, records=n, steps=K, rounds=R, sigma=sigma
    ),
    "eps_Cq": subsampled_epsilon,
    "eps_hidden_batches": hidden_batches,
    "eps_client_poisson": lambda q, z, rounds, delta, h: subsampling.compose_poisson_batches(
        multiplier=z, rate=q, steps=rounds
    ).epsilon(delta),
    "eps_participation_mixture": lambda q, mu_round, rounds, delta, h: (
        mixtures.mix_gaussians([0.0, mu_round], [1 - q, q]).repeat(rounds).epsilon(delta)
    ),
    "participation_mixture_delta": lambda eps, q, mu, rounds: conversions.binomial_delta(
        eps, rate=q, mu=mu, rounds=rounds
    ),
    "weak_fdp_reach_probability": lambda p, R: prifedsync.reach_probability(
        probability=p, rounds=R
    ),
}


# Formulas that Sordino rounds to the safe side, with how far at most: from every client's variance
# it takes what the reference takes from their sum, (6/s)^2 of it.
ABOVE: dict[str, tuple[Callable[..., float], float]] = {
    "discrete_gaussian_mu": (price_integers, (6 / 300) ** 2 / 2 * 1.001),
    "secure_sum_mu": (
        lambda sensitivity, **args: price_sum(sensitivity, **args),
        (6 / (0.05 * 2**20)) ** 2 / 2 * 1.001,
    ),
}


def reference(vector: dict[str, Any]) -> Any:
    """The stored value, except where the reference adds an allowance for its own truncation that an exact sum does not need."""
    if vector["formula"] != "clones_rdp":
        return vector["value"]
    # It cuts mass 2e-18 off the number of clones and charges it with the largest ratio, e^((order - 1) eps0).
    order, local = vector["args"]["alpha"], vector["args"]["eps0"]
    return math.log(
        math.exp((order - 1) * vector["value"]) - 2e-18 * math.exp((order - 1) * local)
    ) / (order - 1)


@pytest.mark.parametrize(
    "index", range(len(VECTORS)), ids=lambda index: f"{VECTORS[index]['formula']}-{index}"
)
def test_reference_value(index: int) -> None:
    vector = VECTORS[index]
    if vector["formula"] in ABOVE:
        price, above = ABOVE[vector["formula"]]
        found = price(**vector["args"])
        assert vector["value"] * (1 - 1e-12) <= found <= vector["value"] * (1 + above)
        return
    computed = np.array(FORMULAS[vector["formula"]](**vector["args"]), dtype=float)
    if vector["formula"] == "clones_rdp" and vector["args"]["alpha"] * vector["args"]["eps0"] > 40:
        # There the allowance is all that is left of the reference: an exact value must lie below it.
        assert computed <= vector["value"]
        return
    np.testing.assert_allclose(computed, reference(vector), rtol=vector["rtol"])
    if vector["kind"] == "sound-upper" and "extrapolated" in vector:
        assert computed >= vector["extrapolated"] * (1 - 1e-9), (
            "a certified epsilon lies above the exact one"
        )


def test_every_formula_has_vectors() -> None:
    assert {vector["formula"] for vector in VECTORS} == set(FORMULAS) | set(ABOVE)
    assert not set(FORMULAS) & set(ABOVE)
