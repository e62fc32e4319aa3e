"""Data sets by name or path, and their partition among clients."""

from sordino.data.dataset import TEST_PARTS, Dataset, digest, drop_test_part
from sordino.data.earlier import IN_PYTHON, are_scores_covered, division_notes, find_tested_on
from sordino.data.named_sets import (
    KNOWN,
    find_agreed_classes,
    load_data,
    load_dataset,
    refuse_other_columns,
)
from sordino.data.partition import LabelShares, client_tests, label_counts, partition
from sordino.data.picture import draw_partition

__all__ = [
    "IN_PYTHON",
    "KNOWN",
    "TEST_PARTS",
    "Dataset",
    "LabelShares",
    "are_scores_covered",
    "client_tests",
    "digest",
    "division_notes",
    "draw_partition",
    "drop_test_part",
    "find_agreed_classes",
    "find_tested_on",
    "label_counts",
    "load_data",
    "load_dataset",
    "partition",
    "refuse_other_columns",
]
