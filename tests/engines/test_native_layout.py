"""Python and the compiled kernel describe the structures that they share; differences are refused."""

import shutil
from pathlib import Path

import pytest

from sordino.models.clipping import CLIP_FRACTION
from sordino.native import layout, library
from sordino.native.library import list_runnable, load_library
from sordino.protocol import UserError
from tests.kernel_faults import SOURCES, compile_portable, needs_compiler

needs_kernel = pytest.mark.skipif(not list_runnable(), reason="the native kernel was not built")


@needs_kernel
@pytest.mark.parametrize("simd", list_runnable())
def test_every_library_describes_all_that_is_shared(simd: str) -> None:
    theirs = layout.parse_layout(load_library(simd).sordino_layout().decode())
    assert theirs == layout.describe_layout()
    assert len(theirs) == 6 + 28 + 21 + 8 + 6 + 7 + 11 + 24 + 2
    assert theirs["CLIP_FRACTION"] == CLIP_FRACTION == 1 - 1e-6
    assert theirs["Job"] == 8 * 28


@pytest.mark.parametrize("name", sorted(layout.describe_layout()))
def test_any_other_number_is_a_difference(name: str) -> None:
    ours = layout.describe_layout()
    moved = ours | {name: ours[name] * 2 + 8}
    assert f"{name} is {moved[name]} in the library" in layout.find_layout_difference(moved)
    absent = {other: ours[other] for other in ours if other != name}
    assert f"{name} is absent in the library" in layout.find_layout_difference(absent)
    assert "unheard of is 1 in the library and absent" in layout.find_layout_difference(
        ours | {"unheard of": 1}
    )
    assert layout.find_layout_difference(ours) is None


CHANGES = {
    "swapped fields": ("jobs.h", "  int64_t client;\n  int64_t round;", "  int64_t round;\n  int64_t client;", "Job.client is 184 in the library and 176 here"),
    "another number": ("blocks.h", "TANH = 2, SIGMOID = 3", "TANH = 3, SIGMOID = 2", "Activation.TANH is 3 in the library and 2 here"),
    "another clip": ("jobs.h", "1.0 - 1e-6", "1.0 - 1e-7", "CLIP_FRACTION is 0.9999999 in the library and 0.999999 here"),
}  # fmt: skip


@pytest.mark.slow
@needs_compiler
@needs_kernel
@pytest.mark.parametrize("change", CHANGES)
def test_a_library_of_other_sources_is_refused_with_a_sentence(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, before, after, said = CHANGES[change]
    sources = shutil.copytree(SOURCES, tmp_path / "src")
    text = (sources / name).read_text()
    assert before in text
    (sources / name).write_text(text.replace(before, after))
    compile_portable(sources, tmp_path / "portable.test.so", "-O0")
    monkeypatch.setenv(library.FOLDER, str(tmp_path))
    with pytest.raises(UserError, match="does not fit this version of Sordino") as error:
        load_library("portable")
    assert said in str(error.value)
    assert "`make native`" in str(error.value)
