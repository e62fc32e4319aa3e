"""Programs in the compiled kernel: training jobs, gradients, outputs, and the kernel's own random draws."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sordino.engines.native.library import load
from sordino.engines.native.program import Loss, Program
from sordino.protocol import InvalidValue, UserError

# One client's training, as src/step.h has it; pointers are numbers, and whoever fills them in keeps what they point to alive.
JOB = np.dtype(
    [
        ("data", np.uintp),
        ("rule", np.uintp),
        ("start", np.uintp),
        ("centre", np.uintp),
        ("exact_start", np.uintp),
        ("exact_centre", np.uintp),
        ("result", np.uintp),
        ("exact", np.uintp),
        ("first", np.uintp),
        ("second", np.uintp),
        ("taken", np.int64),
        ("records", np.uintp),
        ("population", np.int64),
        ("rows", np.uintp),
        ("counts", np.uintp),
        ("correction", np.uintp),
        ("batch_key", np.uintp),
        ("step_key", np.uintp),
        ("upload_key", np.uintp),
        ("client", np.int64),
        ("round", np.int64),
        ("lane", np.int64),
        ("clipped", np.int64),
        ("clips", np.int64),
        ("nonfinite", np.int64),
    ]
)


class Optimiser(IntEnum):
    """How a clipped gradient becomes a step; numbered as in src/step.h."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAGRAD = 3


class _Rule(ctypes.Structure):
    _fields_ = (
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("per_example", ctypes.c_int64),
        ("norm", ctypes.c_int64),
        ("clip", ctypes.c_double),
        ("divisor", ctypes.c_double),
        ("proximal", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("optimiser", ctypes.c_int64),
        ("momentum", ctypes.c_double),
        ("second_momentum", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("step_noise", ctypes.c_double),
        ("upload_noise", ctypes.c_double),
        ("rates", ctypes.c_void_p),
    )


class _Records(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("are_bytes", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
    )


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """The local steps of a client, as the kernel knows them.

    A step clips the gradient of its batch, or of every example of it, and adds `step_noise` times normals, the client's correction, the
    pull to the job's centre and weight decay, all outside the clip. The optimiser moves by the sum. Once the steps are done,
    `upload_noise` times normals is added.

    Example:
        >>> StepRule(rates=(0.1, 0.1), batch=32, clip=1.0).steps
        2
    """

    rates: Sequence[float]
    batch: int = 0
    clip: float = float("inf")
    per_example: bool = False
    norm: int = 2
    divisor: float = 0.0  # of the sum of clipped examples; 0: their number
    proximal: float = 0.0
    weight_decay: float = 0.0
    optimiser: Optimiser = Optimiser.SGD
    momentum: float = 0.9
    second_momentum: float = 0.999
    epsilon: float = 1e-8
    step_noise: float = 0.0
    upload_noise: float = 0.0

    @property
    def steps(self) -> int:
        """How many."""
        return len(self.rates)


class PackedRule:
    """A rule in the kernel's form. It holds the memory that `address` points to."""

    def __init__(self, rule: StepRule) -> None:
        if rule.norm not in (1, 2):
            raise InvalidValue("norm", rule.norm, "1 or 2")
        if not rule.clip > 0:
            raise InvalidValue("clip", rule.clip, "a number above 0")
        self._rates = np.array(rule.rates, dtype=np.float64)
        names = [name for name, _ in _Rule._fields_ if name not in ("steps", "rates")]
        values = {name: getattr(rule, name) for name in names}
        self._packed = _Rule(steps=rule.steps, rates=self._rates.ctypes.data, **values)
        self.address = ctypes.addressof(self._packed)


class Records:
    """Records as the kernel reads them, without a copy. It holds the arrays that the kernel points to."""

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        *,
        scale: np.ndarray | None = None,
        shift: np.ndarray | None = None,
    ) -> None:
        if x.dtype not in (np.uint8, np.float32):
            raise InvalidValue("records", x.dtype, "uint8 or float32")
        if len(x) != len(y) or len(x) == 0:
            raise UserError(
                f"there are {len(x)} records and {len(y)} answers; there must be as many, and at least one"
            )
        whole = np.issubdtype(y.dtype, np.integer)
        self.count, self.size, self.labelled = len(x), int(x[0].size), whole
        self.outputs = 0 if whole else int(y[0].size)
        self.labels = int(y.max()) + 1 if whole else 0
        if whole and int(y.min()) < 0:
            raise InvalidValue("labels", int(y.min()), "0 or greater")
        self._x = np.ascontiguousarray(x)
        self._y = np.ascontiguousarray(y, dtype=np.int64 if whole else np.float32)
        given = {"scale": (scale, 1.0), "shift": (shift, 0.0)}
        full = {
            n: np.ascontiguousarray(
                np.broadcast_to(v if v is not None else d, x.shape[1:]), np.float32
            )
            for n, (v, d) in given.items()
        }
        self._constants = full if (full["scale"] != 1).any() or (full["shift"] != 0).any() else {}
        self._packed = _Records(
            x=self._x.ctypes.data,
            are_bytes=x.dtype == np.uint8,
            labels=self._y.ctypes.data if whole else None,
            targets=None if whole else self._y.ctypes.data,
            **{name: values.ctypes.data for name, values in self._constants.items()},
        )
        self.address = ctypes.addressof(self._packed)


class Kernel:
    """A program, ready to run. It holds memory of the compiled library, which goes with it."""

    def __init__(self, program: Program, loss: Loss, *, batch: int, simd: str) -> None:
        self.program, self.loss, self.simd = program, loss, simd
        self._library = load(simd)
        self.lanes = self._library.sordino_lanes()
        self.vectors = vectors_for(batch, self.lanes)
        tensors, layers = program.tensor_table(), program.layer_table()
        sizes = (
            tensors.ctypes.data,
            len(tensors),
            layers.ctypes.data,
            len(layers),
            self.vectors,
            int(loss),
        )
        self._handle = self._library.sordino_plan(*sizes)
        if not self._handle or self._library.sordino_parameters(self._handle) != program.parameters:
            raise RuntimeError("the kernel did not take the program")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.sordino_release(self._handle)

    @property
    def memory(self) -> int:
        """Bytes that every thread holds."""
        return int(self._library.sordino_memory(self._handle))

    def check(self, records: Records) -> None:
        """Refuse records that do not fit the program: the kernel itself looks at nothing."""
        if records.size != self.program.record_size:
            raise UserError(
                f"records have {records.size} values, the model takes {self.program.record_size}"
            )
        if records.labelled != (self.loss is Loss.CROSS_ENTROPY):
            raise UserError(f"the loss {self.loss.name} does not fit the answers of the records")
        if records.labelled and records.labels > self.program.outputs:
            raise UserError(
                f"there are labels up to {records.labels - 1}, the model has {self.program.outputs} outputs"
            )
        if not records.labelled and records.outputs != self.program.outputs:
            raise UserError(
                f"records have {records.outputs} targets, the model has {self.program.outputs} outputs"
            )

    def train(
        self, records: Records | Sequence[Records], jobs: np.ndarray, *, threads: int
    ) -> None:
        """Run jobs (an array of `JOB`) on the same records, or each on its own.

        Results go where the jobs say, and what happened into the jobs themselves.
        """
        for one in {records} if isinstance(records, Records) else set(records):
            self.check(one)
        jobs["data"] = (
            records.address if isinstance(records, Records) else [one.address for one in records]
        )
        self._must(self._library.sordino_train(self._handle, jobs.ctypes.data, len(jobs), threads))

    def gradient(
        self, records: Records, rule: StepRule, weights: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """The clipped gradient that a step on some records would use, before noise, and their mean loss."""
        self.check(records)
        weights, rows = self._weights(weights), checked_rows(rows, records.count)
        gradient, loss, packed = (
            np.empty(self.program.parameters, np.float32),
            ctypes.c_double(),
            PackedRule(rule),
        )
        places = (
            weights.ctypes.data,
            rows.ctypes.data,
            len(rows),
            gradient.ctypes.data,
            ctypes.addressof(loss),
        )
        self._must(
            self._library.sordino_gradient(self._handle, records.address, packed.address, *places)
        )
        return gradient, loss.value

    def outputs(
        self, records: Records, weights: np.ndarray, rows: np.ndarray, *, threads: int = 1
    ) -> np.ndarray:
        """What the model gives for some records, one a row."""
        self.check(records)
        weights, rows = self._weights(weights), checked_rows(rows, records.count)
        outputs = np.empty((len(rows), self.program.outputs), np.float32)
        places = (weights.ctypes.data, rows.ctypes.data, len(rows), outputs.ctypes.data, threads)
        self._must(self._library.sordino_outputs(self._handle, records.address, *places))
        return outputs

    def _weights(self, weights: np.ndarray) -> np.ndarray:
        if weights.shape != (self.program.parameters,):
            raise UserError(
                f"a vector of shape {weights.shape} was given for a model of {self.program.parameters} parameters"
            )
        return np.ascontiguousarray(weights, dtype=np.float32)

    def _must(self, code: int) -> None:
        if code != 0:
            raise MemoryError(
                f"the native engine needs {self.memory / 2**20:.0f} MiB for every thread, and there is not enough memory"
            )


def vectors_for(batch: int, lanes: int) -> int:
    """Vectors of examples that pass through the network together: equal blocks of the batch, of two or three where that is possible.

    Example:
        >>> [vectors_for(batch, 16) for batch in (1, 20, 32, 48, 50, 256)]
        [1, 2, 2, 3, 2, 3]
    """
    vectors = -(-max(batch, 1) // lanes)
    blocks = -(-vectors // 3)
    return -(-vectors // blocks)


def checked_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Numbers of records, if there are such records."""
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if rows.ndim != 1 or len(rows) == 0 or rows.min() < 0 or rows.max() >= count:
        raise UserError(f"rows must be numbers of records below {count}, at least one")
    return rows


def new_jobs(
    kernel: Kernel,
    rule: PackedRule,
    start: np.ndarray,
    parts: Sequence[np.ndarray],
    keys: Sequence[bytes],
    *,
    round: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Jobs for clients 0, 1, ... with these records, and the array that the results go to, one a row.

    `keys` are those of the minibatches, of the noise in steps and of the noise on the upload. All arguments must outlive the jobs.
    """
    jobs, results = (
        np.zeros(len(parts), JOB),
        np.empty((len(parts), kernel.program.parameters), np.float32),
    )
    jobs["rule"], jobs["start"], jobs["round"] = rule.address, start.ctypes.data, round
    jobs["result"] = results.ctypes.data + np.arange(len(parts), dtype=np.uintp) * np.uintp(
        results.strides[0]
    )
    jobs["records"], jobs["population"] = (
        [part.ctypes.data for part in parts],
        [len(part) for part in parts],
    )
    jobs["client"] = np.arange(len(parts))
    for name, key in zip(("batch_key", "step_key", "upload_key"), keys, strict=True):
        jobs[name] = address_of(key)
    return jobs, results


def address_of(key: bytes) -> int:
    """Where the bytes of a key are."""
    return ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p).value or 0


# ---- the kernel's own draws, for comparison with sordino.federation.randomness


def keystream(simd: str, key: bytes, nonce: bytes, count: int, *, first: int = 0) -> np.ndarray:
    """32-bit words of the ChaCha20 keystream, from the first one on, block counter from 0."""
    words = np.empty(count, np.uint32)
    load(simd).sordino_keystream(key, nonce, words.ctypes.data, first, count)
    return words


def normals(simd: str, key: bytes, nonce: bytes, count: int, *, first: int = 0) -> np.ndarray:
    """Standard normals, as `Stream.normals` draws them, from the first one on."""
    values = np.empty(count)
    load(simd).sordino_normals(key, nonce, values.ctypes.data, first, count)
    return values


def subsets(
    simd: str, key: bytes, nonce: bytes, count: int, size: int, population: int
) -> np.ndarray:
    """Subsets, as `Stream.subsets` draws them."""
    chosen = np.empty((count, size), np.int64)
    load(simd).sordino_subsets(key, nonce, chosen.ctypes.data, count, size, population)
    return chosen
