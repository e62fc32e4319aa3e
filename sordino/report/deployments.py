"""Lists published deployments of differential privacy: what an epsilon compares with.

The numbers are those that the deployments registry of OpenDP and NIST lists, as they were published
there in 2026; nothing is converted, since units and adversaries differ.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTRY = "registry.opendp.org"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Describes a deployment as it was published.

    Attributes:
        what: The publisher, the data product and the year.
        promise: The published numbers.
        unit: The unit of privacy.
        trusted: "central" where the collector sees data without noise, "local" where nobody does.
        source: The address of the publication.
    """

    what: str
    promise: str
    unit: str
    trusted: str
    source: str


DEPLOYMENTS = (
    Deployment(
        what="Apple, popular emojis, 2017",
        promise="ε = 4",
        unit="one event, again and again",
        trusted="local",
        source="https://docs-assets.developer.apple.com/ml-research/papers/"
        "learning-with-privacy-at-scale.pdf",
    ),
    Deployment(
        what="Microsoft, suggested replies, 2020",
        promise="ε = 4, δ < 1e-7",
        unit="one user",
        trusted="central",
        source="https://www.microsoft.com/en-us/research/articles/"
        "assistive-ai-makes-replying-easier-2/",
    ),
    Deployment(
        what="U.S. Census Bureau, redistricting data 2020, persons",
        promise="ρ = 2.56, ε = 17.14 at δ = 1e-10",
        unit="one person",
        trusted="central",
        source="https://arxiv.org/abs/2204.08986",
    ),
    Deployment(
        what="U.S. Census Bureau, redistricting data 2020, housing units",
        promise="ρ = 0.07, ε = 2.47 at δ = 1e-10",
        unit="one housing unit",
        trusted="central",
        source="https://arxiv.org/abs/2204.08986",
    ),
    Deployment(
        what="Google, Spanish next words by federated learning, 2022",
        promise="ρ = 0.81",
        unit="one device",
        trusted="central",
        source="https://research.google/blog/"
        "federated-learning-with-formal-differential-privacy-guarantees/",
    ),
    Deployment(
        what="Wikimedia, page views, since 2023",
        promise="ρ = 0.015",
        unit="one device on one day",
        trusted="central",
        source="https://arxiv.org/abs/2308.16298",
    ),
    Deployment(
        what="Israel's Ministry of Health, live births of 2014, 2024",
        promise="ε = 9.98",
        unit="one birth",
        trusted="central",
        source="https://birth.dataset.pub",
    ),
)


def deployment_rows() -> list[tuple[str, str, str, str]]:
    """Returns the deployments as rows of a table: name, promise, unit, and the trusted party."""
    return [(one.what, one.promise, one.unit, one.trusted) for one in DEPLOYMENTS]
