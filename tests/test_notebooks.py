"""The code of every notebook runs."""

import json

import pytest

from tests.support import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


def code_of(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(path.read_text())
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {}
    for cell in cells:
        exec(compile(code_of(cell), str(path), "exec"), names)
        # Results of one machine are not committed.
        assert cell["outputs"] == []
    assert capsys.readouterr().out


def test_a_notebook_for_each_role_is_there_and_listed() -> None:
    assert len(NOTEBOOKS) >= 5
    page = (REPOSITORY / "docs" / "notebooks.md").read_text()
    for path in NOTEBOOKS:
        assert path.name in page
