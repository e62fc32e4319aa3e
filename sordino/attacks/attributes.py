"""A hidden attribute of a record from what a model makes of it (convergent-dp, Table 15; udp-fl, Table 8).

The attacker overhears the penultimate embeddings of clients' records, or only the answers. On records of its own, whose attribute it
knows, it trains a classifier with two layers from embeddings to the attribute.

An untrained model's embeddings carry the attribute too, since they are made of the record: what training adds is the difference to
round 0. Where the attribute is among the inputs, as on Adult, no noise in training keeps embeddings from showing it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from sordino.attacks.game import Case, Measure, Scored, Tick
from sordino.attacks.observed import ObservedModel
from sordino.attacks.reading import Reader
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthAttribute
from sordino.federation.data import Dataset
from sordino.protocol import UserError, View

# Attributes that follow from the class: which classes have them.
BY_CLASS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cifar10": {"animal": ("bird", "cat", "deer", "dog", "frog", "horse")},
    "mnist": {"even": tuple("02468")},
    "digits": {"even": tuple("02468")},
}
# What papers infer with these data; of UTKFace not the attribute that the model is trained for.
USUAL = {"adult": "sex", "utkface": "race", "utkface-race": "gender", "utkface-age": "gender"}
LEAST = 50  # records that the attacker needs
MOST_VALUES = 20  # of an attribute


@dataclass(frozen=True, kw_only=True)
class AttributeAttack:
    """An attribute from embeddings.

    Attributes:
        rounds: how many models are attacked, from the initial to the last.
        targets: how many of the clients' records.
        records: how many the attacker has.
        width: of the classifier's hidden layer.
        passes: of its training over the attacker's records.
        attribute: which; None for the usual one of the data.
    """

    rounds: int
    targets: int
    records: int
    width: int
    passes: int
    attribute: str | None = None
    name: str = "attributes"
    view: View = View.ROUNDS
    paper: str = "convergent-dp, Table 15; udp-fl, Table 8"
    headline: str = "accuracy"

    def cases(self, referee: Referee) -> list[Case[ObservedModel, TruthAttribute]]:
        """Some models, each with its embeddings of the same clients' records."""
        name, values = attribute_of(referee.dataset, self.attribute)
        own = referee.unheld(self.records)
        if len(own) < LEAST or len(np.unique(values[own])) < 2:
            raise UserError(
                f"the attacker needs at least {LEAST} records with both values of {name!r} that no client holds, and there are {len(own)} "
                "training records that were dealt to nobody. Attack a run with a smaller data.records."
            )
        federation, rows = (
            referee.federation(referee.known(own, {name: values})),
            referee.private_rows(self.targets),
        )
        truth = TruthAttribute(values=values[rows])
        return [
            Case(
                key=f"{name}-{t:06d}",
                round=t,
                observe=partial(referee.model, federation, t, weights, rows),
                reveal=lambda: truth,
            )
            for t, weights in referee.models(self.rounds)
        ]

    def attempt(self, seen: ObservedModel, tick: Tick) -> dict[str, np.ndarray]:
        """For every method the value that each record probably has; "majority" is what the attacker's own records have most often."""
        own = seen.federation.auxiliary
        [values] = own.attributes.values()
        embeddings, answers = Reader(seen.federation.module, seen.model, own.inputs).read(
            own.inputs
        )
        found = {"embeddings": self._inferred(embeddings, values, seen.embeddings)}
        tick(0.5)
        found["answers"] = self._inferred(answers, values, seen.answers)
        names, counts = np.unique(values, return_counts=True)
        return {**found, "majority": np.full(len(seen.answers), names[counts.argmax()])}

    def _inferred(self, features: Tensor, values: np.ndarray, overheard: Tensor) -> np.ndarray:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        classifier = make_pipeline(
            StandardScaler(), MLPClassifier((self.width,), max_iter=self.passes, random_state=0)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier.fit(features.double().numpy(), values)
        return np.asarray(classifier.predict(overheard.double().numpy()))

    def score(self, guess: dict[str, np.ndarray], truth: TruthAttribute) -> Scored:
        """Accuracy and F1, the mean over the values, of every method beside those of the majority."""
        trivial = scores(guess["majority"], truth.values)
        measures = [
            Measure(
                metric=metric,
                method=method,
                value=value,
                baseline=trivial[metric],
                better="higher",
                samples=len(truth.values),
            )
            for method in guess
            if method != "majority"
            for metric, value in scores(guess[method], truth.values).items()
        ]
        return Scored(measures=tuple(measures))


def scores(guessed: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Accuracy, and F1 averaged over the values that there are."""
    from sklearn.metrics import accuracy_score, f1_score

    return {
        "accuracy": float(accuracy_score(true, guessed)),
        "F1": float(f1_score(true, guessed, average="macro", zero_division=0)),
    }


def attribute_of(dataset: Dataset, wanted: str | None) -> tuple[str, np.ndarray]:
    """The name of an attribute, and its value for every training record.

    Raises:
        UserError: the data have no such attribute.

    Example:
        >>> from sordino.federation.data import load_dataset
        >>> name, values = attribute_of(load_dataset("digits"), None)
        >>> name, values[:3].tolist()
        ('even', ['even', 'not even', 'even'])
    """
    by_class = BY_CLASS.get(dataset.name, {})
    known = [
        *by_class,
        *(
            column
            for column in dataset.columns
            if 2 <= len(np.unique(dataset.columns[column])) <= MOST_VALUES
        ),
    ]
    name = wanted if wanted is not None else USUAL.get(dataset.name, next(iter(by_class), None))
    if name is None or name not in known:
        has = f"Its attributes are: {', '.join(known)}." if known else "It has none."
        asked = (
            f"no attribute {name!r}" if name is not None else "no attribute that is usual to infer"
        )
        raise UserError(
            f"{dataset.name} has {asked}. {has} Name one with --attribute, or attack a run on adult, utkface-race or cifar10."
        )
    if name in by_class and dataset.classes is not None:
        having = np.isin(np.array(dataset.classes)[dataset.y_train], by_class[name])
        return name, np.where(having, name, f"not {name}")
    return name, dataset.columns[name].astype(str)


SETTINGS = {
    "quick": AttributeAttack(rounds=3, targets=500, records=1500, width=64, passes=60),
    # Table 15 has 1,000 samples.
    "paper": AttributeAttack(rounds=6, targets=1000, records=10000, width=256, passes=300),
}
