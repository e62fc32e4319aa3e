"""Which records there are, and which client has which: data sets by name or path, and partitions of them."""

from sordino.federation.data.catalogue import KNOWN, load_dataset
from sordino.federation.data.dataset import Dataset, digest
from sordino.federation.data.partition import Shares, client_tests, label_counts, partition
from sordino.federation.data.picture import draw_partition

__all__ = [
    "KNOWN",
    "Dataset",
    "Shares",
    "client_tests",
    "digest",
    "draw_partition",
    "label_counts",
    "load_dataset",
    "partition",
]
