"""Programs in the compiled kernel: training jobs, gradients, outputs and the kernel's own draws.

All checks are made here: the kernel itself trusts the memory that it is given.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sordino.mechanisms.discrete_gaussian import DrawPlan
from sordino.native.discrete_draws import pack_plan
from sordino.native.layout import NoiseLaw, OptimizerKind, RecordsStructure, RuleStructure
from sordino.native.library import load_library
from sordino.native.program import Loss, Program
from sordino.protocol import InvalidValue, UserError

# Vectors of examples that pass through the network together, at most: beyond, values no longer
# stay in the first-level cache.
MOST_VECTORS = 3


@dataclass(frozen=True, kw_only=True)
class StepRule:
    """The local steps of a client, in the kernel's terms.

    A step clips the gradient of its batch, or of every example of it, and adds `step_noise` times
    noise, the client's correction, the pull to the job's centre and weight decay, all outside
    the clip. The optimizer moves by the sum. After the last step, `upload_noise` times normals is
    added.

    Attributes:
        rates: The learning rate of every step.
        batch: Records that every step draws, where the job does not list them.
        clip: The largest norm of a gradient.
        per_example: Whether the gradient of every example is clipped, and not of the batch.
        norm: The order of the norm, 1 or 2.
        divisor: What the sum of clipped examples is divided by; 0: their number.
        proximal: The strength of the pull to the job's centre.
        weight_decay: The strength of the pull to zero.
        optimizer: What turns gradients into moves.
        momentum: The decay rate of the first moments.
        second_momentum: The decay rate of the second moments.
        epsilon: A constant added to the root of the second moments.
        step_noise: The deviation, scale or width of the noise on every gradient.
        upload_noise: The standard deviation of the noise on the result.
        step_law: The law of the noise on every gradient.
        stair_fall: By how much the logarithm of a staircase falls once in every width.
        stair_place: Where in a width it falls.
        grid_scale: Steps to a length of 1 of the grid that updates are rounded to, where they are.
        grid_limit: The largest coordinate of an update, in steps of the grid.
        grid_noise: How the noise of integers is drawn; None: there is none.

    Example:
        >>> StepRule(rates=(0.1, 0.1), batch=32, clip=1.0).steps
        2
    """

    rates: Sequence[float]
    batch: int = 0
    clip: float = float("inf")
    per_example: bool = False
    norm: int = 2
    divisor: float = 0.0
    proximal: float = 0.0
    weight_decay: float = 0.0
    optimizer: OptimizerKind = OptimizerKind.SGD
    momentum: float = 0.9
    second_momentum: float = 0.999
    epsilon: float = 1e-8
    step_noise: float = 0.0
    upload_noise: float = 0.0
    step_law: NoiseLaw = NoiseLaw.NORMAL
    stair_fall: float = 0.0
    stair_place: float = 0.0
    grid_scale: float = 0.0
    grid_limit: float = 0.0
    grid_noise: DrawPlan | None = None

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.rates)


class PackedRule:
    """A rule as a structure of the kernel. It holds the memory that `address` points to.

    Args:
        rule: The rule.

    Raises:
        InvalidValue: The norm is neither 1 nor 2, or the clip is not positive.
    """

    def __init__(self, rule: StepRule) -> None:
        if rule.norm not in (1, 2):
            raise InvalidValue("norm", rule.norm, "1 or 2")
        if not rule.clip > 0:
            raise InvalidValue("clip", rule.clip, "a number above 0")
        # The structure points to this array, so it must live as long.
        self._rates = np.array(rule.rates, dtype=np.float64)
        values = {}
        for name, *_ in RuleStructure._fields_:
            if name not in ("rates", "grid_noise"):
                values[name] = getattr(rule, name)
        if rule.grid_noise is not None:
            values["grid_noise"] = ctypes.addressof(pack_plan(rule.grid_noise))
        self._packed = RuleStructure(rates=self._rates.ctypes.data, **values)
        self.address = ctypes.addressof(self._packed)


class KernelRecords:
    """Records as the kernel reads them, without a copy. It holds the arrays that are pointed to.

    Args:
        x: The records, in uint8 or float32.
        y: Their classes, or quantities to be predicted.
        scale: What every value of a record is multiplied by; None: 1.
        shift: A number added to it then; None: 0.

    Raises:
        InvalidValue: The records are of another type, or a class is negative.
        UserError: There are not as many answers as records, or none at all.
    """

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
                f"there are {len(x)} records and {len(y)} answers; there must be as many, and at "
                "least one"
            )
        self.count = len(x)
        self.size = int(x[0].size)
        self.labelled = bool(np.issubdtype(y.dtype, np.integer))
        # Classes that must exist, or quantities a record: one of the two is 0.
        self.labels = 0
        self.outputs = 0
        self._x = np.ascontiguousarray(x)
        self._packed = RecordsStructure(x=self._x.ctypes.data, are_bytes=x.dtype == np.uint8)
        if self.labelled:
            if int(y.min()) < 0:
                raise InvalidValue("labels", int(y.min()), "0 or greater")
            self.labels = int(y.max()) + 1
            self._y = np.ascontiguousarray(y, dtype=np.int64)
            self._packed.labels = self._y.ctypes.data
        else:
            self.outputs = int(y[0].size)
            self._y = np.ascontiguousarray(y, dtype=np.float32)
            self._packed.targets = self._y.ctypes.data
        # Records that are used as they are cost no pass over them.
        self._scale = _fill_record(scale, 1.0, x.shape[1:])
        self._shift = _fill_record(shift, 0.0, x.shape[1:])
        if (self._scale != 1).any() or (self._shift != 0).any():
            self._packed.scale = self._scale.ctypes.data
            self._packed.shift = self._shift.ctypes.data
        self.address = ctypes.addressof(self._packed)


def _fill_record(given: np.ndarray | None, default: float, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a number for every value of a record."""
    if given is None:
        return np.full(shape, default, dtype=np.float32)
    return np.ascontiguousarray(np.broadcast_to(given, shape), dtype=np.float32)


class Kernel:
    """A program, ready to run. It holds memory of the compiled library, which goes with it.

    Args:
        program: The network.
        loss: The loss of a record.
        batch: Records that most batches have, which decides how many are worked on together.
        simd: The instruction set, one of `library.INSTRUCTION_SETS`.

    Attributes:
        lanes: Numbers in a register.
        vectors: Registers of examples that pass through the network together.
    """

    def __init__(
        self,
        program: Program,
        loss: Loss,
        *,
        batch: int,
        simd: str,
    ) -> None:
        self.program = program
        self.loss = loss
        self.simd = simd
        self._library = load_library(simd)
        self.lanes = self._library.sordino_lanes()
        self.vectors = count_vectors(batch, self.lanes)
        tensors = program.tensor_table()
        layers = program.layer_table()
        # The library copies both tables.
        self._handle = self._library.sordino_plan(
            tensors.ctypes.data,
            len(tensors),
            layers.ctypes.data,
            len(layers),
            self.vectors,
            int(loss),
        )
        # A null handle says that there was no memory.
        if not self._handle or self._library.sordino_parameters(self._handle) != program.parameters:
            raise RuntimeError("the kernel did not take the program")

    def __del__(self) -> None:
        # The constructor may have failed before there was a handle.
        if getattr(self, "_handle", None):
            self._library.sordino_release(self._handle)

    @property
    def memory(self) -> int:
        """Bytes that every thread holds."""
        return int(self._library.sordino_memory(self._handle))

    def check_records(self, records: KernelRecords) -> None:
        """Refuses records that do not fit the program.

        Args:
            records: Records of all clients, as the kernel reads them.

        Raises:
            UserError: They do not fit; the message says in what.
        """
        if records.size != self.program.record_size:
            raise UserError(
                f"records have {records.size} values, the model takes {self.program.record_size}"
            )
        if records.labelled != (self.loss is Loss.CROSS_ENTROPY):
            raise UserError(f"the loss {self.loss.name} does not fit the answers of the records")
        if records.labelled and records.labels > self.program.outputs:
            raise UserError(
                f"there are labels up to {records.labels - 1}, the model has "
                f"{self.program.outputs} outputs"
            )
        if not records.labelled and records.outputs != self.program.outputs:
            raise UserError(
                f"records have {records.outputs} targets, the model has {self.program.outputs} "
                "outputs"
            )

    def train(
        self, records: KernelRecords | Sequence[KernelRecords], jobs: np.ndarray, *, threads: int
    ) -> None:
        """Runs jobs on the same records, or each on its own.

        Results go where the jobs say, and what happened into the jobs themselves.

        Args:
            records: Those of all jobs, or one for each.
            jobs: An array of `JOB`.
            threads: How many jobs run at a time.

        Raises:
            UserError: Records do not fit the program.
            MemoryError: There is not enough memory.
        """
        if isinstance(records, KernelRecords):
            records = [records] * len(jobs)
        # Most jobs share their records: each is checked once.
        for one in set(records):
            self.check_records(one)
        jobs["data"] = [one.address for one in records]
        code = self._library.sordino_train(self._handle, jobs.ctypes.data, len(jobs), threads)
        self._check_code(code)

    def compute_gradient(
        self,
        records: KernelRecords,
        rule: StepRule,
        weights: np.ndarray,
        rows: np.ndarray,
        *,
        mask_key: bytes | None = None,
    ) -> tuple[np.ndarray, float]:
        """Returns the clipped gradient that a first step would use, and the mean loss.

        Args:
            records: Records of all clients, as the kernel reads them.
            rule: How gradients are clipped.
            weights: The model.
            rows: Which records make up the batch.
            mask_key: The key of what dropouts drop; None: nothing.

        Raises:
            UserError: Records, weights or rows do not fit the program.
            MemoryError: There is not enough memory.
        """
        self.check_records(records)
        weights = self._check_weights(weights)
        rows = check_rows(rows, records.count)
        gradient = np.empty(self.program.parameters, np.float32)
        loss = ctypes.c_double()
        packed = PackedRule(rule)
        code = self._library.sordino_gradient(
            self._handle,
            records.address,
            packed.address,
            weights.ctypes.data,
            rows.ctypes.data,
            len(rows),
            None if mask_key is None else key_address(mask_key),
            gradient.ctypes.data,
            ctypes.addressof(loss),
        )
        self._check_code(code)
        return gradient, loss.value

    def compute_outputs(
        self,
        records: KernelRecords,
        weights: np.ndarray,
        rows: np.ndarray,
        *,
        threads: int = 1,
    ) -> np.ndarray:
        """Returns the outputs of the model for some records, one record a row.

        Args:
            records: Records of all clients, as the kernel reads them.
            weights: The model.
            rows: Which records are meant.
            threads: How many threads share the work.

        Raises:
            UserError: Records, weights or rows do not fit the program.
            MemoryError: There is not enough memory.
        """
        self.check_records(records)
        weights = self._check_weights(weights)
        rows = check_rows(rows, records.count)
        outputs = np.empty((len(rows), self.program.outputs), np.float32)
        code = self._library.sordino_outputs(
            self._handle,
            records.address,
            weights.ctypes.data,
            rows.ctypes.data,
            len(rows),
            outputs.ctypes.data,
            threads,
        )
        self._check_code(code)
        return outputs

    def _check_weights(self, weights: np.ndarray) -> np.ndarray:
        if weights.shape != (self.program.parameters,):
            raise UserError(
                f"a vector of shape {weights.shape} was given for a model of "
                f"{self.program.parameters} parameters"
            )
        return np.ascontiguousarray(weights, dtype=np.float32)

    def _check_code(self, code: int) -> None:
        if code != 0:
            raise MemoryError(
                f"the native engine needs {self.memory / 2**20:.0f} MiB for every thread, and "
                "there is not enough memory"
            )


def count_vectors(batch: int, lanes: int) -> int:
    """Returns how many vectors of examples pass through the network together.

    The batch goes in as few blocks of at most `MOST_VECTORS` as there can be, all of equal size.

    Args:
        batch: Records of a batch.
        lanes: Examples of a vector.

    Example:
        >>> [count_vectors(batch, 16) for batch in (1, 20, 32, 48, 50, 256)]
        [1, 2, 2, 3, 2, 3]
    """
    # Divisions are rounded up.
    vectors = -(-max(batch, 1) // lanes)
    blocks = -(-vectors // MOST_VECTORS)
    return -(-vectors // blocks)


def check_rows(rows: np.ndarray, count: int) -> np.ndarray:
    """Returns numbers of records in the kernel's type.

    Args:
        rows: The numbers.
        count: How many records there are.

    Raises:
        UserError: There are no such records, or no numbers.
    """
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if rows.ndim != 1 or len(rows) == 0 or rows.min() < 0 or rows.max() >= count:
        raise UserError(f"rows must be numbers of records below {count}, at least one")
    return rows


def row_addresses(table: np.ndarray) -> np.ndarray:
    """Returns where the rows of a table begin in memory.

    Args:
        table: A table whose rows are contiguous.
    """
    offsets = np.arange(len(table), dtype=np.uintp) * np.uintp(table.strides[0])
    return table.ctypes.data + offsets


def key_address(key: bytes) -> int:
    """Returns where the bytes of a key begin in memory.

    Args:
        key: The key, which must outlive the address.
    """
    return ctypes.cast(ctypes.c_char_p(key), ctypes.c_void_p).value or 0
