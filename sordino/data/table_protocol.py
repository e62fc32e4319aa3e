"""Writes a protocol file for a user's own tables: the clients, and a description of the columns.

What the file states about the tables is public: their files or groups, how many records each has,
and a description of the columns that was made from a sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sordino.data.dataset import split
from sordino.data.partition import refuse_blank_owner
from sordino.data.table_files import FILE_COLUMN, TextTable, read_text_table, require_table
from sordino.data.table_proposal import Proposal, propose_description, write_proposal
from sordino.privacy.calibrate import calibrate
from sordino.protocol import UserError, loads
from sordino.protocol.column_kinds import SplitColumn, names_of_kind

# How many clients share a table that does not assign its records to clients.
SHARED_AMONG = 5
# How many batches a client's records make up. With more, batches are smaller and the noise weighs
# more on each; with fewer, a record is in so many batches that sampling hides it less.
BATCHES = 24
TEXT = """\
# {clients} clients, each with its own records, train one model.
#
# Every step's noise is drawn where the records are, and hides a record from everyone, the server
# included. Everything here is public: columns, limits, categories, classes and sizes.

[federation]
clients = {clients}
rounds = 10

[local]
rule = "noisy-sgd"
steps = 40                        # in each round
batch = {batch}
clip = 0.5                        # norm of every record's gradient
schedule = {{ kind = "constant", rate = 2.0 }}

[noise]
mechanism = "gaussian"
multiplier = {multiplier:g}{indent}# `sordino calibrate` finds it for another epsilon
secure = true                     # from the operating system: nobody can repeat it

[privacy]
budget = {{ epsilon = {epsilon:g}, delta = 1e-5, view = "server" }}

{data}
[model]
name = "logistic"
"""


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """How tables are shared out among clients, and a description of their columns.

    Attributes:
        proposal: The description.
        clients: How many clients there are.
        sizes: How many training records every client has.
    """

    proposal: Proposal
    clients: int
    sizes: tuple[int, ...]


def plan_tables(
    data: Path,
    sample: Path,
    *,
    label: str | None = None,
    target: str | None = None,
    group: str | None = None,
) -> TablePlan:
    """Returns how many records each client has, and a description of the columns by a sample.

    Args:
        data: The table, or the folder with a table for each client.
        sample: The table that is looked at for the description; it may be `data`.
        label: The column that holds the class.
        target: The column that holds the answer of a regression.
        group: The column that assigns records to clients.

    Raises:
        UserError: One of them is not a table, or they have different columns.
    """
    records = read_text_table(data)
    seen = records
    if sample != data:
        seen = read_text_table(sample)
    _refuse_other_columns(records, seen)
    proposal = propose_description(seen, label=label, target=target, group=group)
    owners = group
    if owners is None and FILE_COLUMN in records.columns:
        owners = FILE_COLUMN
    sizes = _count_training_records(records, proposal, owners)
    groups: tuple[str, ...] = ()
    if owners is not None:
        groups = (owners,)
    named = replace(proposal, name=str(data), groups=groups)
    return TablePlan(proposal=named, clients=len(sizes), sizes=sizes)


def propose_protocol(
    data: Path,
    sample: Path,
    *,
    label: str | None = None,
    target: str | None = None,
    group: str | None = None,
    epsilon: float,
) -> str:
    """Returns a protocol file for tables, with the noise that its budget needs.

    Args:
        data: The table, or the folder with a table for each client.
        sample: The table that is looked at for the description; it may be `data`.
        label: The column that holds the class.
        target: The column that holds the answer of a regression.
        group: The column that assigns records to clients.
        epsilon: The largest epsilon that the budget allows.

    Raises:
        UserError: The tables do not fit each other, or no noise meets the budget.
    """
    require_table(data)
    require_table(sample)
    plan = plan_tables(data, sample, label=label, target=target, group=group)
    draft = loads(write_table_protocol(plan, multiplier=1.0, epsilon=epsilon))
    needed = calibrate(draft, "server", epsilon=epsilon).value
    # Three decimals, rounded up: the budget holds.
    return write_table_protocol(plan, multiplier=math.ceil(1000 * needed) / 1000, epsilon=epsilon)


def write_table_protocol(plan: TablePlan, *, multiplier: float, epsilon: float) -> str:
    """Returns the text of a protocol file for tables.

    Args:
        plan: The clients' records, and the columns.
        multiplier: The noise multiplier.
        epsilon: The largest epsilon that the budget allows.
    """
    stated = f"{multiplier:g}"
    return TEXT.format(
        clients=plan.clients,
        batch=max(1, min(plan.sizes) // BATCHES),
        multiplier=multiplier,
        indent=" " * max(1, 21 - len(stated)),
        epsilon=epsilon,
        data=write_proposal(plan.proposal, sizes=plan.sizes),
    )


def _refuse_other_columns(data: TextTable, sample: TextTable) -> None:
    """Refuses a sample whose columns are not those of the tables that it represents."""
    wanted = set(data.columns) - {FILE_COLUMN}
    given = set(sample.columns) - {FILE_COLUMN}
    if wanted != given:
        raise UserError(
            f"{sample.source} has the columns {', '.join(sample.columns)}, but {data.source} has "
            f"{', '.join(data.columns)}. A sample needs the columns of what it is a sample of."
        )


def _count_training_records(
    table: TextTable, proposal: Proposal, owners: str | None
) -> tuple[int, ...]:
    """Returns how many records of every client are trained on."""
    splits = names_of_kind(proposal.columns, SplitColumn)
    if splits:
        rows = np.flatnonzero(np.array(table.take_column(splits[0])) == "train")
    else:
        rows, _ = split(len(table.places))
    if owners is None:
        if len(rows) < SHARED_AMONG:
            raise UserError(
                f"{table.source} has {len(rows)} records to train on, and {SHARED_AMONG} clients "
                "share a table whose records are not assigned to clients. Give a larger table, or "
                "name the column that assigns them: --group COLUMN."
            )
        return (len(rows) // SHARED_AMONG,) * SHARED_AMONG
    # Clients are numbered in the order of their names, as the partition does.
    assigned = table.take_column(owners)
    values, counts = np.unique(np.array(assigned)[rows], return_counts=True)
    if "" in values:
        place = table.places[assigned.index("")]
        refuse_blank_owner(table.source, owners, values, place)
    return tuple(int(count) for count in counts)
