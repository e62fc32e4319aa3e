"""Data sets that come with scikit-learn are read from its files: the same numbers, without waiting for its imports."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from sordino.data import bundled


@pytest.mark.parametrize("file_is_there", [True, False])
def test_the_numbers_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, file_is_there: bool
) -> None:
    if not file_is_there:  # as after a release that keeps it elsewhere
        monkeypatch.setattr(bundled, "find_bundled_file", lambda name: None)
    digits, cancer = load_digits(), load_breast_cancer()
    assert np.array_equal(bundled.read_digits().data, digits.images)
    assert np.array_equal(bundled.read_digits().target, digits.target)
    assert np.array_equal(bundled.read_breast_cancer().data, cancer.data)
    assert np.array_equal(bundled.read_breast_cancer().target, cancer.target)


def test_the_demo_loads_its_data_without_scikit_learn_and_pandas() -> None:
    script = "import sys; from sordino.data import load_dataset; load_dataset('digits');"
    script += "print([name for name in ('sklearn', 'pandas', 'matplotlib') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == "[]", found.stderr
