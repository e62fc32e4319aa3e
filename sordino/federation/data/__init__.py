"""Which records there are, and which client has which: data sets by name or path, and partitions of them."""

from sordino.federation.data.catalogue import (
    KNOWN,
    agreed_classes,
    load_data,
    load_dataset,
    refuse_other_columns,
)
from sordino.federation.data.dataset import TEST_PARTS, Dataset, digest, without_test
from sordino.federation.data.earlier import IN_PYTHON, division_notes, tested_on
from sordino.federation.data.partition import Shares, client_tests, label_counts, partition
from sordino.federation.data.picture import draw_partition

__all__ = [
    "IN_PYTHON",
    "KNOWN",
    "TEST_PARTS",
    "Dataset",
    "Shares",
    "agreed_classes",
    "client_tests",
    "digest",
    "division_notes",
    "draw_partition",
    "label_counts",
    "load_data",
    "load_dataset",
    "partition",
    "refuse_other_columns",
    "tested_on",
    "without_test",
]
