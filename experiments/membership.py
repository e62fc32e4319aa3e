"""Compares membership inference with other implementations, and with the certified curve.

    SORDINO_DATA=... python -m experiments.membership peer [--rmia FILE]
    python -m experiments.membership game [--trainings N] [--plot FILE] [--quick]

`peer` has LiRA and RMIA judge the same models by others' code. It fetches the wheel of
tensorflow-privacy with pip and uses one module of it, which needs no TensorFlow. RMIA by its
authors is on no registry: FILE is `attacks.py` of github.com/privacytrustlab/ml_privacy_meter.
`game` holds the detection of one record against the certified curve. Runs and shadows are kept in a
folder (--out membership).
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

from experiments.markdown_tables import print_header, print_row
from experiments.membership_game import RATES, Detection, MembershipGame, find_detections, play_game
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
from sordino.attacks.membership import SETTINGS, detection_curve, measure_detection
from sordino.attacks.observed import ObservedRecords
from sordino.attacks.referee import Referee
from sordino.attacks.shadows import MembershipEvidence, Shadows, collect_evidence, train_shadows
from sordino.cli.audit_progress import AuditProgress
from sordino.data import load_dataset
from sordino.models import build_model

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


def train_once(protocol: Protocol, place: Path) -> Run:
    """Returns the run of a protocol: trained, resumed, or read."""
    if not (place / "protocol.toml").exists():
        return train(protocol, folder=place, evaluate_every=protocol.rounds, report=False)
    run = Run.load(place)
    if run.status == "unfinished":
        return resume(place, report=False)
    return run


def compare_peers(options: argparse.Namespace) -> None:
    """Prints scores of the same records on the same models, by our code and by others'."""
    run = train_once(OVERFITTED, options.out / "overfitted")
    [case] = replace(SETTINGS["quick"], rounds=1, shadows=options.shadows, asked=3200).cases(
        Referee(run)
    )
    seen = case.observe()
    members = case.reveal().members
    with AuditProgress("shadow models: percent") as progress:
        shadows = train_shadows(seen, options.shadows, progress.share)
    asked = ObservedRecords(
        inputs=seen.candidates.inputs[seen.asked], labels=seen.candidates.labels[seen.asked]
    )
    others = seen.federation.auxiliary
    known = collect_evidence(seen, shadows.select_records(seen.asked), asked)
    nobodys = Shadows(
        models=shadows.models, inside=np.zeros((len(shadows), len(others)), dtype=bool)
    )
    population = collect_evidence(seen, nobodys, others)
    found = {
        "LiRA, sordino": lira.score_online(known),
        "LiRA, tensorflow-privacy": score_by_tensorflow_privacy(known, "both", options.out),
        "LiRA offline, sordino": lira.score_offline(known),
        "LiRA offline, tensorflow-privacy": score_by_tensorflow_privacy(known, "out", options.out),
        "RMIA, sordino": rmia.score_pairwise(known, population),
    }
    if options.rmia is not None:
        found["RMIA, ml_privacy_meter"] = score_by_privacy_meter(known, population, options.rmia)
    print(
        f"{len(members)} records, half of them members; {len(shadows)} shadow models; "
        f"accuracy of the model on test records {run.metrics['accuracy'][-1]:.3f}"
    )
    print("| attack | " + " | ".join(METRICS) + " |\n|" + "---|" * (1 + len(METRICS)))
    for name, scores in found.items():
        said = measure_detection(*detection_curve(members, scores))
        print(f"| {name} | " + " | ".join(f"{said[metric][0]:.4f}" for metric in METRICS) + " |")


def score_by_tensorflow_privacy(known: MembershipEvidence, option: str, folder: Path) -> np.ndarray:
    """Returns tensorflow-privacy's scores of the same answers.

    It takes one variance for all records, as its authors advise for few shadows.

    Args:
        known: The answers.
        option: "both", or "out" for LiRA offline.
        folder: The folder of the wheel.
    """
    code = load_advanced_mia(folder)
    labels = known.labels.numpy()

    def statistic(answers: Any) -> np.ndarray:
        return np.asarray(code.calculate_statistic(answers.double().numpy(), labels))

    target = statistic(known.target)
    shadows = np.stack([statistic(answers) for answers in known.shadows])
    sides = [
        [shadows[side[:, n], n][:, None] for n in range(len(labels))]
        for side in (known.inside, ~known.inside)
    ]
    scores = code.compute_score_lira(
        target[:, None], *sides, option=option, fix_variance=True, median_or_mean="mean"
    )
    # Members have small values there.
    return -np.asarray(scores)


def load_advanced_mia(folder: Path) -> Any:
    """Returns the module of tensorflow-privacy that has LiRA, taken out of its wheel.

    Importing the whole package would need TensorFlow.
    """
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
    # The module imports it for a statistic that is not used here.
    absent[names[-1]].log_loss = None  # type: ignore[attr-defined]
    with mock.patch.dict(sys.modules, absent):
        spec.loader.exec_module(module)
    return module


def score_by_privacy_meter(
    known: MembershipEvidence, population: MembershipEvidence, path: Path
) -> np.ndarray:
    """Returns the scores of the same answers by the authors' code.

    It tunes its parameter on one model, which is the last shadow here.
    """
    spec = importlib.util.spec_from_file_location("privacy_meter_attacks", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is no Python file")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)

    def signals(evidence: MembershipEvidence) -> np.ndarray:
        """Returns a table of records by models: the attacked one, the one tuned on, and shadows."""
        target = rmia.true_class_probabilities(evidence.target, evidence.labels)
        shadows = rmia.true_class_probabilities(evidence.shadows, evidence.labels)
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
    """Returns a game on breast cancer with 4 clients of one record each.

    The record in question carries its own label or the opposite one. The model is linear and the
    clip binds: the confidence of the record then moves as far as certified, and the test is nearly
    the best.
    """
    whole = load_dataset("breast-cancer")
    data = Dataset(
        name="few",
        x_train=whole.x_train[:4],
        y_train=whole.y_train[:4],
        x_test=whole.x_test[:4],
        y_test=whole.y_test[:4],
        classes=whole.classes,
        scale=whole.scale,
        shift=whole.shift,
    )
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


def play_games(options: argparse.Namespace) -> None:
    """Prints detection with the certified noise, and with a third of it, beside the same curve.

    A third of the noise must be refuted: otherwise the test would have no power.
    """
    one = detected_game(options.trainings)
    certified = one.certify_game()
    weak = replace(
        one.protocol, noise=replace(one.protocol.noise, sigma=(one.protocol.noise.sigma or 0.0) / 3)
    )
    print(f"certified: {certified.sentence()}")
    print_header("noise", "aimed FPR", "FPR at most", "TPR at least", "certified TPR at most", "")
    drawn = {}
    for name, runs in (("as certified", one.protocol), ("a third of it", weak)):
        with AuditProgress(f"{name}: percent of the trainings") as progress:
            scores = play_game(one, protocol=runs, tick=progress.share)
        for found in find_detections(scores, certified):
            verdict = "holds"
            if found.refuted:
                verdict = "refuted"
            print_row(
                name,
                found.aimed,
                f"{found.limits.false_positive:.5f}",
                f"{found.detected:.5f}",
                f"{found.allowed:.5f}",
                verdict,
            )
        drawn[name] = find_detections(scores, certified, np.geomspace(RATES[-1], 0.5, 30).tolist())
    if options.plot is not None:
        draw_detections(drawn, certified, options)


def draw_detections(
    drawn: dict[str, Sequence[Detection]], certified: Any, options: argparse.Namespace
) -> None:
    """Draws the certified curve, and the detection that was measured, on log axes."""
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
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("peer", "game"), default="game")
    parser.add_argument("--out", type=Path, default=Path("membership"))
    parser.add_argument("--shadows", type=int, default=32)
    parser.add_argument("--rmia", type=Path, help="attacks.py of ml_privacy_meter")
    parser.add_argument("--trainings", type=int, default=5000)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--quick", action="store_true", help="a look: fewer shadows and trainings")
    options = parser.parse_args()
    if options.quick:
        options.out = options.out.with_name(f"{options.out.name}-quick")
        options.shadows = 4
        options.trainings = 500
    {"peer": compare_peers, "game": play_games}[options.what](options)


if __name__ == "__main__":
    main()
