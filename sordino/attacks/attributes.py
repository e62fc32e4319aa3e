"""Infers a hidden attribute of a record from what a model makes of it.

The papers' tables are convergent-dp, Table 15, and udp-fl, Table 8. The attacker overhears the
penultimate embeddings of clients' records, or only the answers. On its own records, whose attribute
it knows, it trains a classifier with two layers from embeddings to the attribute.

An untrained model's embeddings carry the attribute too, since they are made of the record: training
adds only the difference to round 0. Where the attribute is among the inputs, as on Adult, no noise
in training keeps embeddings from showing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from sordino.attacks.attack import Case, CaseResult, Measure, Tick
from sordino.attacks.observed import ObservedModel
from sordino.attacks.reading import ModelReader, train_classifier
from sordino.attacks.referee import Referee
from sordino.attacks.truth import TruthAttribute
from sordino.data import Dataset
from sordino.protocol import UserError, View

# Attributes that follow from the class: which classes have them.
CLASS_ATTRIBUTES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "cifar10": {"animal": ("bird", "cat", "deer", "dog", "frog", "horse")},
    "mnist": {"even": tuple("02468")},
    "digits": {"even": tuple("02468")},
}
# The attributes that papers infer with these data. With UTKFace it is one that the model is not
# trained for.
USUAL_ATTRIBUTES = {
    "adult": "sex",
    "utkface": "race",
    "utkface-race": "gender",
    "utkface-age": "gender",
}
# The fewest records with which the attacker can train a classifier.
LEAST_RECORDS = 50
# The most values that an attribute may have.
MOST_VALUES = 20


@dataclass(frozen=True, kw_only=True)
class AttributeAttack:
    """Infers an attribute from embeddings.

    Attributes:
        rounds: The number of models that are attacked, from the initial to the last.
        targets: The number of clients' records whose attribute is inferred.
        records: The number of records that the attacker has.
        width: The width of the classifier's hidden layer.
        passes: The passes of its training over the attacker's records.
        attribute: The name of the attribute; None for the usual one of the data.
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
        """Returns some models, each with its embeddings of the same clients' records.

        Args:
            referee: Knows the run.

        Raises:
            UserError: The data have no such attribute, or the attacker too few records.
        """
        name, values = read_attribute(referee.dataset, self.attribute)
        own = referee.unassigned_rows(self.records)
        # Fewer records, or only one value among them, train no classifier, and the result would say
        # nothing about the run.
        if len(own) < LEAST_RECORDS or len(np.unique(values[own])) < 2:
            raise UserError(
                f"the attacker needs at least {LEAST_RECORDS} records with both values of {name!r} "
                f"that no client holds, and {len(own)} training records were assigned to no "
                "client. Attack a run with a smaller data.records."
            )
        federation = referee.public_federation(referee.attribute_records(own, name, values))
        # The same records at every round, so that rounds differ only by the model.
        rows = referee.client_rows(self.targets)
        truth = TruthAttribute(values=values[rows])
        cases = []
        for round_index, weights in referee.global_models(self.rounds):
            case = Case(
                key=f"{name}-{round_index:06d}",
                round=round_index,
                observe=partial(referee.observe_model, federation, round_index, weights, rows),
                reveal=lambda: truth,
            )
            cases.append(case)
        return cases

    def attempt(self, seen: ObservedModel, tick: Tick) -> dict[str, np.ndarray]:
        """Returns the value that each record probably has, by every method.

        The method "majority" names the commonest value among the attacker's own records.

        Args:
            seen: What the attacker is given.
            tick: Called with the share of the work that is done.
        """
        own = seen.federation.auxiliary
        # The referee gives the attacker's records exactly one attribute: the one that is inferred.
        [values] = own.attributes.values()
        reader = ModelReader(seen.federation.module, seen.model, own.inputs)
        embeddings, answers = reader.read(own.inputs)
        by_embeddings = self._infer_values(embeddings, values, seen.embeddings)
        tick(0.5)
        by_answers = self._infer_values(answers, values, seen.answers)
        # Without a run, the best guess is the value that is commonest among the attacker's own
        # records.
        names, counts = np.unique(values, return_counts=True)
        majority = np.full(len(seen.answers), names[counts.argmax()])
        return {"embeddings": by_embeddings, "answers": by_answers, "majority": majority}

    def score(self, guess: dict[str, np.ndarray], truth: TruthAttribute) -> CaseResult:
        """Returns accuracy and mean F1 of every method next to those of guesses without a run.

        Args:
            guess: What `attempt` returned.
            truth: The true values.
        """
        baselines = score_values(guess["majority"], truth.values)
        floors = score_blind_guesses(truth.values)
        baselines = {name: max(value, floors[name]) for name, value in baselines.items()}
        measures = []
        # The majority is the baseline of the others and no result of an attack.
        for method, values in guess.items():
            if method == "majority":
                continue
            for metric, value in score_values(values, truth.values).items():
                measure = Measure(
                    metric=metric,
                    method=method,
                    value=value,
                    baseline=baselines[metric],
                    better="higher",
                    samples=len(truth.values),
                )
                measures.append(measure)
        return CaseResult(measures=tuple(measures))

    def _infer_values(self, features: Tensor, values: np.ndarray, overheard: Tensor) -> np.ndarray:
        """Returns the values that a classifier, trained on the attacker's records, infers."""
        classifier = train_classifier(
            features.double().numpy(), values, width=self.width, passes=self.passes
        )
        return np.asarray(classifier.predict(overheard.double().numpy()))


def score_values(guessed: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Returns accuracy, and F1 averaged over the values.

    Args:
        guessed: The inferred values.
        true: The true values.
    """
    from sklearn.metrics import accuracy_score, f1_score

    return {
        "accuracy": float(accuracy_score(true, guessed)),
        # The values of an attribute may be rare. A mean over values, unlike accuracy, does not
        # reward an attack that always names the commonest one.
        "F1": float(f1_score(true, guessed, average="macro", zero_division=0)),
    }


def score_blind_guesses(true: np.ndarray) -> dict[str, float]:
    """Returns what a guess that looks at nothing gets: the commonest value, or a fair die.

    The attacker's own records may have another commonest value, and be worse than that.

    Args:
        true: The true values.

    Example:
        >>> score_blind_guesses(np.array([1, 1, 1, 0]))
        {'accuracy': 0.75, 'F1': 0.4666666666666667}
    """
    names, counts = np.unique(true, return_counts=True)
    shares = counts / counts.sum()
    commonest = score_values(np.full(len(true), names[shares.argmax()]), true)
    # Precision of a die is a value's share, and recall is 1 over the number of values.
    die = np.mean(2 * shares / len(shares) / (shares + 1 / len(shares)))
    return {
        "accuracy": max(commonest["accuracy"], 1 / len(shares)),
        "F1": max(commonest["F1"], float(die)),
    }


def read_attribute(dataset: Dataset, wanted: str | None) -> tuple[str, np.ndarray]:
    """Returns the name of an attribute, and its value for every training record.

    Args:
        dataset: The data.
        wanted: The name; None for the attribute that papers infer with these data.

    Raises:
        UserError: The data have no such attribute.

    Example:
        >>> from sordino.data import load_dataset
        >>> name, values = read_attribute(load_dataset("digits"), None)
        >>> name, values[:3].tolist()
        ('even', ['even', 'not even', 'even'])
    """
    class_attributes = CLASS_ATTRIBUTES.get(dataset.name, {})
    known = list(class_attributes)
    for column, column_values in dataset.columns.items():
        # One value can be guessed without any attack; with very many, such as an identifier, each
        # has too few records to learn from.
        if 2 <= len(np.unique(column_values)) <= MOST_VALUES:
            known.append(column)
    name = wanted
    if name is None:
        name = USUAL_ATTRIBUTES.get(dataset.name, next(iter(class_attributes), None))
    if name is None or name not in known:
        raise _unknown_attribute(dataset.name, name, known)
    if name in class_attributes and dataset.classes is not None:
        record_classes = np.array(dataset.classes)[dataset.y_train]
        has_attribute = np.isin(record_classes, class_attributes[name])
        return name, np.where(has_attribute, name, f"not {name}")
    return name, dataset.columns[name].astype(str)


def _unknown_attribute(dataset_name: str, name: str | None, known: list[str]) -> UserError:
    """Returns the error for an attribute that the data do not have."""
    missing = "no attribute that is usual to infer"
    if name is not None:
        missing = f"no attribute {name!r}"
    available = "It has none."
    if known:
        available = f"Its attributes are: {', '.join(known)}."
    return UserError(
        f"{dataset_name} has {missing}. {available} Name one with --attribute, "
        "or attack a run on adult, utkface-race or cifar10."
    )


SETTINGS = {
    "quick": AttributeAttack(rounds=3, targets=500, records=1500, width=64, passes=60),
    # Table 15 has 1,000 samples.
    "paper": AttributeAttack(rounds=6, targets=1000, records=10000, width=256, passes=300),
}
