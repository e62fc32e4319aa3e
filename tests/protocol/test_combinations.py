"""What two features would do together where nobody has proved or built it is refused, by the name of a key."""

import pytest

from sordino.protocol import (
    Attention,
    ClientBudget,
    Constant,
    Custom,
    FedAvg,
    Gaussian,
    Identity,
    Interpolate,
    Laplace,
    Mean,
    ModeConnectivity,
    NoisySgd,
    Poisson,
    Privacy,
    Protocol,
    Scaffold,
    Staircase,
    UserError,
)

STEPS = {"steps": 2, "batch": 4, "clip": 1.0, "schedule": Constant(rate=0.1)}
BUDGETS = tuple(ClientBudget(id=client, epsilon=1.0 + client) for client in range(3))
OWN_NOISE = tuple(ClientBudget(id=client, epsilon=1.0, mechanism="laplace") for client in range(3))
FIXED = Mean(denominator="fixed")
CENTRAL = Gaussian(sigma=1.0, where="server")


def noisy(**changes: object) -> Protocol:
    return Protocol(
        **{
            "clients": 3,
            "rounds": 2,
            "local": NoisySgd(**STEPS),
            "noise": Gaussian(multiplier=1.0),
            **changes,
        }
    )


def plain(rule: type = FedAvg, **changes: object) -> Protocol:
    return Protocol(
        **{
            "clients": 3,
            "rounds": 2,
            "local": rule(**STEPS),
            "noise": Gaussian(sigma=1.0),
            **changes,
        }
    )


@pytest.mark.parametrize("noise", [
    Laplace(scale=1.0),
    Laplace(scale=1.0, where="server"),
    Staircase(step=1.0, width=1.0),
    Custom(factory="mine.noise:logistic"),
    Gaussian(multiplier=1.0, where="server"),
    Gaussian(multiplier=1.0, where="both", server_sigma=1.0),
    Gaussian(sigma=1.0),
])  # fmt: skip
def test_noisy_steps_have_gaussian_noise_at_the_client(noise) -> None:
    with pytest.raises(UserError, match="multiplier"):
        noisy(noise=noise)


@pytest.mark.parametrize("where", [{}, {"where": "server"}, {"where": "both", "server_sigma": 1.0}])
@pytest.mark.parametrize("rule", [FedAvg, Scaffold])
def test_uploads_have_no_multiplier(rule, where) -> None:
    with pytest.raises(UserError, match=r"noise\.(multiplier|where)"):
        plain(rule, noise=Gaussian(multiplier=1.0, **where))


@pytest.mark.parametrize(("changes", "key"), [
    ({"channel": "shuffler"}, "federation.channel"),
    ({"penalty": True, "client": BUDGETS}, "federation.penalty"),
    ({"client": OWN_NOISE}, "client.mechanism"),
    ({"aggregation": FIXED, "personalization": Identity()}, "federation.personalization"),
    ({"privacy": Privacy(adjacency="add-or-remove")}, "privacy.adjacency"),
])  # fmt: skip
def test_what_noisy_steps_do_not_go_with(changes, key) -> None:
    with pytest.raises(UserError, match=key):
        noisy(**changes)


@pytest.mark.parametrize("own", [Identity(), Interpolate(alpha=0.5), Attention(own=0.5, pull=0.1)])
@pytest.mark.parametrize(("changes", "key"), [
    ({"channel": "shuffler"}, "federation.channel"),
    ({"penalty": True, "client": BUDGETS}, "federation.personalization"),
    ({"client": OWN_NOISE}, "client.mechanism"),
    ({"aggregation": FIXED}, "federation.personalization"),
    ({"aggregation": FIXED, "participation": Poisson(rate=0.5), "noise": CENTRAL}, "federation.personalization"),
    ({"noise": Laplace(scale=1.0)}, "federation.personalization"),
    ({"noise": Gaussian(sigma=1.0, where="both", server_sigma=1.0)}, "federation.personalization"),
    ({"local": FedAvg(**STEPS, clip_target="update")}, "federation.personalization"),
    ({"local": Scaffold(**STEPS)}, "federation.personalization"),
])  # fmt: skip
def test_what_own_models_do_not_go_with(own, changes, key) -> None:
    with pytest.raises(UserError, match=key):
        plain(personalization=own, **changes)


def test_what_is_made_of_priced_uploads_alone_is_allowed() -> None:
    connected = ModeConnectivity(public="digits")
    assert noisy(aggregation=connected, client=BUDGETS).adjacency == "replace-one"
    assert noisy(aggregation=FIXED).keeps_models is False
    assert plain(
        aggregation=connected, personalization=Attention(own=0.5), client=BUDGETS
    ).keeps_models
