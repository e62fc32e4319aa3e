"""The structures that Python and the compiled kernel share, and a check that they agree.

The kernel reads memory that Python fills in, so every field must be at the same place for both.
Each side describes its structures, enumerations and constants as names with numbers: C++ in
src/layout.h, Python here. The two descriptions are compared when the library is loaded.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum

import numpy as np

from sordino.models.clipping import CLIP_FRACTION, LONGEST_IN_CLIPS
from sordino.native.program import LAYER_ROW, TENSOR_ROW, Activation, Kind, Loss

# One client's training, as src/jobs.h has it. Pointers are numbers: the code that fills them in
# keeps alive what they point to.
JOB = np.dtype(
    [
        # The records of the federation, and how the client steps.
        ("data", np.uintp),
        ("rule", np.uintp),
        # Models that the client begins at and is pulled to, rounded and exact.
        ("start", np.uintp),
        ("centre", np.uintp),
        ("exact_start", np.uintp),
        ("exact_centre", np.uintp),
        # Where the trained model goes: with its noise in float32, or without in float64.
        ("result", np.uintp),
        ("exact", np.uintp),
        # Or the noisy update on the rule's grid, multiplied by the client's weight before.
        ("integers", np.uintp),
        ("weight", np.float64),
        # Moments of the optimizer, and the steps that they have seen.
        ("first", np.uintp),
        ("second", np.uintp),
        ("taken", np.int64),
        # The numbers of the client's records.
        ("records", np.uintp),
        ("population", np.int64),
        # Batches, where the kernel does not draw them.
        ("rows", np.uintp),
        ("counts", np.uintp),
        # Control variates.
        ("correction", np.uintp),
        # The address of every draw.
        ("batch_key", np.uintp),
        ("step_key", np.uintp),
        ("upload_key", np.uintp),
        ("mask_key", np.uintp),
        ("client", np.int64),
        ("round", np.int64),
        ("lane", np.int64),
        # Written by the kernel: what the clip did.
        ("clipped", np.int64),
        ("clips", np.int64),
        ("nonfinite", np.int64),
    ]
)


class OptimizerKind(IntEnum):
    """How a clipped gradient becomes a step; numbered as in src/jobs.h."""

    SGD = 0
    MOMENTUM = 1
    ADAM = 2
    ADAGRAD = 3


class NoiseLaw(IntEnum):
    """The law of noise in steps; numbered as in src/jobs.h."""

    NORMAL = 0
    LAPLACE = 1
    STAIRCASE = 2


class RuleStructure(ctypes.Structure):
    """`Rule` of src/jobs.h."""

    # Every field is eight bytes wide, so that no compiler pads between them.
    _fields_ = (
        ("steps", ctypes.c_int64),
        ("batch", ctypes.c_int64),
        ("per_example", ctypes.c_int64),
        ("norm", ctypes.c_int64),
        ("clip", ctypes.c_double),
        ("divisor", ctypes.c_double),
        ("proximal", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("optimizer", ctypes.c_int64),
        ("momentum", ctypes.c_double),
        ("second_momentum", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("step_noise", ctypes.c_double),
        ("upload_noise", ctypes.c_double),
        ("step_law", ctypes.c_int64),
        ("stair_fall", ctypes.c_double),
        ("stair_place", ctypes.c_double),
        ("grid_scale", ctypes.c_double),
        ("grid_limit", ctypes.c_double),
        ("grid_noise", ctypes.c_void_p),
        ("rates", ctypes.c_void_p),
    )


class DigitsStructure(ctypes.Structure):
    """`Digits` of src/jobs.h."""

    _fields_ = (
        ("digits", ctypes.c_int64),
        ("guides", ctypes.c_int64),
        ("searches", ctypes.c_int64),
        ("magnitudes", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("low", ctypes.c_void_p),
        ("search_steps", ctypes.c_int64),
        ("largest", ctypes.c_int64),
    )


class RecordsStructure(ctypes.Structure):
    """`Records` of src/jobs.h."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("are_bytes", ctypes.c_int64),
        ("scale", ctypes.c_void_p),
        ("shift", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("targets", ctypes.c_void_p),
    )


def describe_layout() -> dict[str, float]:
    """Returns where every shared field is, and the number of every shared name.

    Returns:
        Sizes of structures ("Job"), offsets of fields ("Job.client"), numbers of enumerations
        ("Kind.LINEAR") and constants ("CLIP_FRACTION").

    Example:
        >>> describe_layout()["Job.rule"], describe_layout()["Loss.SQUARED_ERROR"]
        (8, 2)
    """
    layout: dict[str, float] = {}
    for name, table in {"TensorRow": TENSOR_ROW, "LayerRow": LAYER_ROW, "Job": JOB}.items():
        layout[name] = table.itemsize
        for field, (_, offset, *_) in (table.fields or {}).items():
            layout[f"{name}.{field}"] = offset
    structures = {"Records": RecordsStructure, "Rule": RuleStructure, "Digits": DigitsStructure}
    for name, structure in structures.items():
        layout[name] = ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            layout[f"{name}.{field}"] = getattr(structure, field).offset
    for numbers in (Kind, Activation, Loss, OptimizerKind, NoiseLaw):
        for member in numbers:
            layout[f"{numbers.__name__}.{member.name}"] = member.value
    layout["CLIP_FRACTION"] = CLIP_FRACTION
    layout["LONGEST_IN_CLIPS"] = LONGEST_IN_CLIPS
    return layout


def parse_layout(text: str) -> dict[str, float]:
    r"""Returns the description that a library gives of its layout.

    Args:
        text: A name and a number a line; numbers that are not whole are hexadecimal.

    Returns:
        The number of every name.

    Example:
        >>> parse_layout("Job 200\nCLIP_FRACTION 0x1.8p-1\n")
        {'Job': 200, 'CLIP_FRACTION': 0.75}
    """
    layout: dict[str, float] = {}
    for line in text.splitlines():
        name, number = line.split()
        # Hexadecimal digits carry a constant exactly.
        if number.lstrip("-").isdecimal():
            layout[name] = int(number)
        else:
            layout[name] = float.fromhex(number)
    return layout


def find_layout_difference(theirs: dict[str, float]) -> str | None:
    """Returns in words the first point in which a library's layout differs from this version's.

    Args:
        theirs: The description of the library.

    Returns:
        The name with both numbers; None if they agree.

    Example:
        >>> find_layout_difference(describe_layout() | {"Job.rule": 16})
        'Job.rule is 16 in the library and 8 here'
    """
    ours = describe_layout()
    # Names that only one side has are differences too.
    for name in [*ours, *theirs]:
        if ours.get(name) != theirs.get(name):
            there = theirs.get(name, "absent")
            here = ours.get(name, "absent")
            return f"{name} is {there} in the library and {here} here"
    return None
