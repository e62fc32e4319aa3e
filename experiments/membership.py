"""Membership inference beside other implementations, and against what is certified.

    SORDINO_DATA=... python -m experiments.membership peer [--rmia FILE]      LiRA and RMIA on the same models by others' code
    python -m experiments.membership game [--trainings N] [--plot FILE]       detection of one record under the certified curve

`peer` fetches the wheel of tensorflow-privacy with pip and uses one module of it, which needs no TensorFlow. RMIA by its authors is on no
registry: FILE is `attacks.py` of github.com/privacytrustlab/ml_privacy_meter. Runs and shadows are kept in a folder (--out membership).
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import subprocess
import sys
import types
import zipimport
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from sordino import (
    Constant,
    Data,
    Dataset,
    FedAvg,
    Gaussian,
    Model,
    Protocol,
    Run,
    calibrate,
    resume,
    train,
)
from sordino.attacks import lira, rmia
from sordino.attacks.membership import SETTINGS, detection_curve, measured
from sordino.attacks.membership_game import RATES, Detection, MembershipGame, detections, played
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.shadows import Evidence, Shadows, evidence_on, trained_shadows
from sordino.federation.data import load_dataset
from sordino.federation.models import build_model
from sordino.ui.audit import AuditProgress

PEER = "tensorflow-privacy==0.8.7"
PACKAGE = ("tensorflow_privacy", "privacy", "privacy_tests")
METRICS = ("AUC", "TPR at 1 % FPR", "TPR at 0.1 % FPR")

# Small clients that train until they know their records by heart.
OVERFITTED = Protocol(
    seed=1,
    clients=10,
    rounds=60,
    local=FedAvg(steps=10, batch=16, clip=10.0, schedule=Constant(rate=0.5)),
    noise=Gaussian(sigma=0.0),
    data=Data(name="location30", records=160),
    model=Model(name="mlp"),
)


def trained_run(protocol: Protocol, place: Path) -> Run:
    """The run of a protocol: trained, gone on with, or read."""
    if not (place / "protocol.toml").exists():
        return train(protocol, folder=place, evaluate_every=protocol.rounds, report=False)
    run = Run.load(place)
    return run if run.status != "unfinished" else resume(place, report=False)


def peer(options: argparse.Namespace) -> None:
    """Scores of the same records on the same models, by our code and by others'."""
    run = trained_run(OVERFITTED, options.out / "overfitted")
    [case] = replace(SETTINGS["quick"], rounds=1, shadows=options.shadows, asked=3200).cases(
        Referee(run)
    )
    seen, members = case.observe(), case.reveal().members
    with AuditProgress("shadow models: percent") as progress:
        shadows = trained_shadows(seen, options.shadows, progress.share)
    asked = ObservedRecords(
        inputs=seen.candidates.inputs[seen.asked], labels=seen.candidates.labels[seen.asked]
    )
    others = seen.federation.auxiliary
    known = evidence_on(seen, shadows.about(seen.asked), asked)
    nobodys = Shadows(
        models=shadows.models, inside=np.zeros((len(shadows), len(others)), dtype=bool)
    )
    population = evidence_on(seen, nobodys, others)
    found = {
        "LiRA, sordino": lira.online(known),
        "LiRA, tensorflow-privacy": lira_of_tensorflow_privacy(known, "both", options.out),
        "LiRA offline, sordino": lira.offline(known),
        "LiRA offline, tensorflow-privacy": lira_of_tensorflow_privacy(known, "out", options.out),
        "RMIA, sordino": rmia.pairwise(known, population),
    }
    if options.rmia is not None:
        found["RMIA, ml_privacy_meter"] = rmia_of_privacy_meter(known, population, options.rmia)
    print(f"{len(members)} records, half of them members; {len(shadows)} shadow models; accuracy of the model on test records "
          f"{run.metrics['accuracy'][-1]:.3f}")  # fmt: skip
    print("| attack | " + " | ".join(METRICS) + " |\n|" + "---|" * (1 + len(METRICS)))
    for name, scores in found.items():
        said = measured(*detection_curve(members, scores))
        print(f"| {name} | " + " | ".join(f"{said[metric][0]:.4f}" for metric in METRICS) + " |")


def lira_of_tensorflow_privacy(known: Evidence, option: str, folder: Path) -> np.ndarray:
    """What tensorflow-privacy makes of the same answers: one variance for all records, as its authors advise for few shadows."""
    code, labels = advanced_mia(folder), known.labels.numpy()

    def statistic(answers: Any) -> np.ndarray:
        return np.asarray(code.calculate_statistic(answers.double().numpy(), labels))

    target, shadows = (
        statistic(known.target),
        np.stack([statistic(answers) for answers in known.shadows]),
    )
    sides = [
        [shadows[side[:, n], n][:, None] for n in range(len(labels))]
        for side in (known.inside, ~known.inside)
    ]
    scores = code.compute_score_lira(
        target[:, None], *sides, option=option, fix_variance=True, median_or_mean="mean"
    )
    return -np.asarray(scores)  # members have small values there


def advanced_mia(folder: Path) -> Any:
    """The module of tensorflow-privacy that has LiRA, taken out of its wheel: importing the package would need TensorFlow."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (wheels := list(folder.glob("tensorflow_privacy-*.whl"))):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                str(folder),
                PEER,
            ],
            check=True,
        )
        wheels = list(folder.glob("tensorflow_privacy-*.whl"))
    loader = zipimport.zipimporter(str(wheels[0].joinpath(*PACKAGE, "membership_inference_attack")))
    spec = importlib.util.spec_from_loader("advanced_mia", loader)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{wheels[0]} has no advanced_mia")
    module = importlib.util.module_from_spec(spec)
    names = [".".join(PACKAGE[: n + 1]) for n in range(len(PACKAGE))] + [
        ".".join((*PACKAGE, "utils"))
    ]
    absent = {name: types.ModuleType(name) for name in names}
    absent[names[-1]].log_loss = None  # type: ignore[attr-defined]  # for a statistic that is not used
    with mock.patch.dict(sys.modules, absent):
        spec.loader.exec_module(module)
    return module


def rmia_of_privacy_meter(known: Evidence, population: Evidence, path: Path) -> np.ndarray:
    """What the authors' code makes of the same answers. It tunes its parameter on one model, which is the last shadow here."""
    spec = importlib.util.spec_from_file_location("privacy_meter_attacks", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is no Python file")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)

    def signals(evidence: Evidence) -> np.ndarray:
        """Records x models: the attacked model, the one that is tuned on, the other shadows."""
        target = rmia.right_probabilities(evidence.target, evidence.labels)
        shadows = rmia.right_probabilities(evidence.shadows, evidence.labels)
        return np.stack([target, shadows[-1], *shadows[:-1]], axis=1)

    inside = np.stack(
        [np.zeros(len(known.labels), dtype=bool), known.inside[-1], *known.inside[:-1]], axis=1
    )
    references = (len(known.inside) - 1) // 2
    a, *_ = code.tune_offline_a(
        0, signals(known), signals(population), inside, logging.getLogger("peer")
    )
    return np.asarray(code.run_rmia(0, signals(known), signals(population), inside, references, a))


def detected_game(trainings: int) -> MembershipGame:
    """Breast cancer, 4 clients with one record each; the record in question carries its own label or the opposite one.

    A linear model and a clip that binds: the confidence of the record then moves as far as certified, and the test is nearly the best.
    """
    whole = load_dataset("breast-cancer")
    data = Dataset(
        name="few", x_train=whole.x_train[:4], y_train=whole.y_train[:4], x_test=whole.x_test[:4], y_test=whole.y_test[:4],
        classes=whole.classes, scale=whole.scale, shift=whole.shift,
    )  # fmt: skip
    local = FedAvg(steps=2, batch=1, clip=0.05, schedule=Constant(rate=0.1))
    plan = Protocol(
        clients=4,
        rounds=5,
        local=local,
        noise=Gaussian(sigma=1.0),
        data=Data(name="few", records=1),
        model=Model(name="logistic"),
    )
    plan = calibrate(plan, "final", epsilon=8.0, delta=1e-5).protocol
    module = build_model("logistic", data.input_shape, data.outputs, seed=1)
    return MembershipGame(
        protocol=plan,
        data=data,
        row=0,
        other=(data.x_train[0], 1 - int(data.y_train[0])),
        module=module,
        trainings=trainings,
    )


def game(options: argparse.Namespace) -> None:
    """Detection with the noise that is certified, and with a third of it, both under or over the same curve."""
    one = detected_game(options.trainings)
    certified = one.certified()
    weak = replace(
        one.protocol, noise=replace(one.protocol.noise, sigma=(one.protocol.noise.sigma or 0.0) / 3)
    )
    print(f"certified: {certified.sentence()}")
    print(
        "| noise | aimed FPR | FPR at most | TPR at least | certified TPR at most | |\n|---|---|---|---|---|---|"
    )
    drawn = {}
    for name, runs in (("as certified", one.protocol), ("a third of it", weak)):
        with AuditProgress(f"{name}: percent of the trainings") as progress:
            scores = played(one, protocol=runs, tick=progress.share)
        for found in detections(scores, certified):
            print(f"| {name} | {found.aimed} | {found.limits.false_positive:.5f} | {found.detected:.5f} | {found.allowed:.5f} | "
                  f"{'refuted' if found.refuted else 'holds'} |")  # fmt: skip
        drawn[name] = detections(scores, certified, np.geomspace(RATES[-1], 0.5, 30).tolist())
    if options.plot is not None:
        draw(drawn, certified, options)


def draw(
    drawn: dict[str, Sequence[Detection]], certified: Any, options: argparse.Namespace
) -> None:
    """The certified curve, and what was detected at least, on log axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.6), layout="constrained")
    axes = figure.subplots()
    alphas = np.geomspace(1e-4, 1, 200)
    axes.plot(
        alphas,
        [1 - certified.beta(float(alpha)) for alpha in alphas],
        color="black",
        label="certified: at most",
    )
    axes.plot(alphas, alphas, color="grey", linewidth=0.8, label="guessing")
    for name, found in drawn.items():
        axes.plot(
            [one.limits.false_positive for one in found],
            [one.detected for one in found],
            marker=".",
            label=f"noise {name}: at least",
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(1e-3, 1),
        ylim=(1e-3, 1.1),
        xlabel="false positive rate",
        ylabel="true positive rate",
    )
    axes.legend(loc="lower right", fontsize="small")
    axes.set_title(
        f"Was the record in it? {4 * options.trainings:,} trainings each, limits at 99.9 %",
        fontsize="medium",
    )
    figure.savefig(options.plot, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("peer", "game"))
    parser.add_argument("--out", type=Path, default=Path("membership"))
    parser.add_argument("--shadows", type=int, default=32)
    parser.add_argument("--rmia", type=Path, help="attacks.py of ml_privacy_meter")
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    {"peer": peer, "game": game}[options.what](options)


if __name__ == "__main__":
    main()
