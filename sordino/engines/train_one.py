"""`train` and `resume`: from a protocol to a run on disk."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.engines.choice import Chosen, SuperLink, check_engine, choose_engine
from sordino.engines.run_folders import make_folder
from sordino.engines.run_lifecycle import resume_run, start_run
from sordino.engines.run_options import (
    Listener,
    RunOptions,
    Watch,
    ignore_message,
    ignore_start,
)
from sordino.federation.complete_protocol import DataSource, ModelSource, resolve_protocol
from sordino.federation.processors import check_device
from sordino.federation.round_metrics import ignore_metrics
from sordino.federation.setup import Begun, Setup, prepare
from sordino.federation.store.run import Run
from sordino.federation.store.run_folder import RunFolder
from sordino.federation.store.signatures import (
    name_signer,
    read_private_key,
    refuse_unsigned,
    sign_run,
)
from sordino.protocol import InvalidValue, Protocol, ProtocolSource, UserError, accept_protocol
from sordino.wiring import ask_above

# About how often a run is scored by default.
SCORINGS = 50


def train(
    protocol: ProtocolSource,
    *,
    data: Any = None,
    model: ModelSource | None = None,
    folder: str | Path | None = None,
    engine: str = "auto",
    workers: int | None = None,
    device: str = "cpu",
    evaluate_every: int | None = None,
    keep_uploads: int = 0,
    superlink: SuperLink | None = None,
    sign: str | Path | None = None,
    report: bool = True,
    on_start: Callable[[Begun, Path], None] = ignore_start,
    on_round: Listener = ignore_metrics,
    on_message: Callable[[str], None] = ignore_message,
) -> Run:
    """Trains a federation and keeps the run on disk.

    Args:
        protocol: The protocol, the path of its file, or a dictionary of its tables.
        data: A name, a path, arrays (x, y) or (x_train, y_train, x_test, y_test), a pandas or
            polars DataFrame, or a `Dataset`, in place of `protocol.data.name`.
        model: A name, a module or a factory, in place of `protocol.model.name`. A module is copied,
            never changed.
        folder: Where the run is kept; by default `runs/<data>-<n>`.
        engine: "native", "torch", "flower" across machines, or "auto": the native engine where it
            can run the training, else torch.
        workers: Processes (torch) or threads (native) that train clients; by default one per core.
            The result does not depend on it.
        device: "cpu", "cuda" or "mps".
        evaluate_every: The number of rounds from one scoring to the next, on the test records,
            public or not; 0 for no scoring; by default a run is scored about 50 times.
        keep_uploads: The number of rounds from one whose uploads are kept to the next, for audits
            and attacks; the last round's are kept too. 0 to keep none.
        superlink: Where the clients' machines meet, for the engine "flower".
        sign: File of an Ed25519 key that signs the run when it has ended
            (`sordino verify --new-key` makes one).
        report: Whether report.html is written at the end, which takes a few seconds.
        on_start: Called once, before the first round.
        on_round: Called after every round.
        on_message: Called with other news, such as that a client fell silent.

    Returns:
        The run.

    Raises:
        UserError: Something does not fit; nothing was written.

    Example:
        >>> from sordino import Protocol, FedAvg, StageWise, Gaussian, train
        >>> protocol = Protocol(
        ...     clients=10,
        ...     rounds=2,
        ...     local=FedAvg(steps=2, batch=8, clip=1.0, schedule=StageWise(rate=0.5)),
        ...     noise=Gaussian(sigma=0.01),
        ... )
        >>> run = train(protocol, data="digits", model="logistic")  # doctest: +SKIP
        >>> run.status  # doctest: +SKIP
        'finished'
    """
    protocol = accept_protocol(protocol)
    key = None if sign is None else read_private_key(Path(sign))
    every = find_scoring_interval(evaluate_every, protocol)
    check_interval("keep-uploads", keep_uploads)
    check_device(device)
    watch = Watch(on_start=on_start, on_round=on_round, on_message=on_message)
    if check_engine(engine, superlink) == "flower" and superlink is not None:
        named = resolve_names(protocol, data, model)
        finished = ask_above("train_across")(
            named,
            superlink,
            folder=make_folder(folder, named),
            evaluate_every=every,
            keep_uploads=keep_uploads,
            signer=name_signer(key),
            watch=watch,
        )
    else:
        setup = prepare(protocol, data=data, model=model)
        options = RunOptions(
            evaluate_every=find_scoring_interval(evaluate_every, setup.protocol),
            keep_uploads=keep_uploads,
            workers=workers,
            device=device,
            signer=name_signer(key),
        )
        finished = start_run(
            setup, choose_engine(setup, engine, device), folder, options, watch, model=model
        )
    return close_run(finished, key, report)


def resume(
    folder: str | Path,
    *,
    data: DataSource | None = None,
    model: ModelSource | None = None,
    workers: int | None = None,
    device: str = "cpu",
    superlink: SuperLink | None = None,
    sign: str | Path | None = None,
    report: bool = True,
    on_start: Callable[[Begun, Path], None] = ignore_start,
    on_round: Listener = ignore_metrics,
    on_message: Callable[[str], None] = ignore_message,
) -> Run:
    """Continues an interrupted run, which ends as if uninterrupted if its noise is seeded.

    Args:
        folder: The folder of the run.
        data: As in `train`, if they were passed in Python.
        model: As in `train`.
        workers: As in `train`; it need not be the number that the run was started with.
        device: As in `train`.
        superlink: As in `train`, for a run across machines.
        sign: As in `train`.
        report: As in `train`.
        on_start: As in `train`.
        on_round: As in `train`.
        on_message: As in `train`.

    Returns:
        The run.

    Raises:
        UserError: There is no such run, it has ended, something in it was changed, or it needs a
            key to be signed and none was given.

    Example:
        >>> resume("runs/digits-1")  # doctest: +SKIP
    """
    key = None if sign is None else read_private_key(Path(sign))
    run_folder = RunFolder.existing(Path(folder))
    refuse_unsigned(run_folder, key)
    watch = Watch(on_start=on_start, on_round=on_round, on_message=on_message)
    if run_folder.facts()["engine"] == "flower":
        finished = ask_above("resume_across")(run_folder, superlink, name_signer(key), watch)
    else:

        def prepare_engine(protocol: Protocol) -> tuple[Setup, Chosen]:
            """Returns the federation, and the engine that continues to train it.

            Args:
                protocol: The protocol in the run's folder.
            """
            setup = prepare(protocol, data=data, model=model)
            # Engines round differently, and the same seeded noise must not go on other uploads.
            wanted = "auto" if protocol.noise.secure else run_folder.facts()["engine"]
            return setup, choose_engine(setup, wanted, device)

        options = RunOptions(workers=workers, device=device, signer=name_signer(key))
        finished = resume_run(run_folder, prepare_engine, options, watch, model=model)
    return close_run(finished, key, report)


def close_run(run: Run, key: Ed25519PrivateKey | None, report: bool) -> Run:
    """Signs a run that has ended, and writes its report.

    Args:
        run: The run that has ended.
        key: The key that signs the run; None for an unsigned run.
        report: Whether a report is written.

    Returns:
        The same run.
    """
    if key is not None:
        sign_run(run.folder, key)
    if report:
        report_run(run)
    return run


def report_run(run: Run) -> None:
    """Writes the report of a run; an error in it becomes a warning.

    Args:
        run: The run that has ended.
    """
    # Loaded only now: a run without a report need not wait for the libraries that draw one.
    ask_above("write_final_report")(run, lambda text: warnings.warn(text, stacklevel=5))


def resolve_names(
    protocol: Protocol, data: DataSource | None, model: ModelSource | None
) -> Protocol:
    """Returns the protocol with the given names of data and model.

    Args:
        protocol: The federation that is trained.
        data: A name or a path, in place of the protocol's.
        model: A name, in place of the protocol's.

    Raises:
        UserError: Data or model are an object, which cannot be sent to other machines.
    """
    for key, given in (("data", data), ("model", model)):
        if given is not None and not isinstance(given, str):
            raise UserError(
                f"{key} was passed as an object; across machines give a name or a path that every "
                "machine knows."
            )
    return resolve_protocol(protocol, data, model)


def find_scoring_interval(every: int | None, protocol: Protocol) -> int:
    """Returns the number of rounds from one scoring to the next; 0 without test records.

    Args:
        every: The given number; None for about `SCORINGS` scorings in a run.
        protocol: The protocol, which may set no test records aside.

    Raises:
        InvalidValue: The given number is negative or not whole.
    """
    asked = max(1, protocol.rounds // SCORINGS)
    if every is not None:
        asked = check_interval("evaluate-every", every)
    untested = protocol.data is not None and protocol.data.test == "none"
    return 0 if untested else asked


def check_interval(key: str, every: int) -> int:
    """Returns a number of rounds, if it is a whole number of at least 0.

    Args:
        key: The name of the option, for the message.
        every: The given number.

    Raises:
        InvalidValue: The given number is negative or not whole.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 0:
        raise InvalidValue(key, every, "a whole number, 0 for never")
    return every
