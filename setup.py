"""Builds the native kernel: one library for every instruction set, each optional. Everything else is in pyproject.toml."""

import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCES = Path("sordino/native/src")
# Infinities and NaN must keep their meaning, so there is no -ffast-math; what is allowed is only to forget errno and traps.
QUIET = [
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]  # GCC 12 warns of its own header for AVX-512
OPTIONS = [
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
    "-g0",
    "-pthread",
    *QUIET,
]
INSTRUCTIONS = {
    "portable": [],
    "avx2": ["-march=x86-64-v3"],
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
}


def libraries() -> list[Extension]:
    """The libraries that make sense on this machine; on others than x86-64 the portable one uses what the compiler knows (NEON)."""
    intel = platform.machine().lower() in ("x86_64", "amd64")
    names = INSTRUCTIONS if intel else {"portable": []}
    extra = os.environ.get(
        "SORDINO_NATIVE_FLAGS", ""
    ).split()  # such as -fsanitize=address,undefined
    headers = [str(path) for path in sorted(SOURCES.glob("*.h"))]
    return [
        Extension(
            f"sordino.native.built.{name}",
            [str(SOURCES / f"{name}.cpp")],
            depends=headers,
            language="c++",
            extra_compile_args=[*OPTIONS, *flags, *extra],
            extra_link_args=["-pthread", *extra],
            optional=True,
        )
        for name, flags in names.items()
    ]


class BuildLibraries(build_ext):
    """Plain shared libraries that ctypes loads. Where they cannot be built the package is installed without them, and says so."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self) -> None:
        places = [Path(self.get_ext_fullpath(library.name)) for library in self.extensions]
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            # Earlier versions named the version of Python in the file, and would be found first.
            for earlier in place.parent.glob(f"{place.stem}.*.so"):
                earlier.unlink()
        super().run()
        if not any(place.exists() for place in places):
            self.warn(
                "the native engine was not built: Sordino works without it, with its torch engine. It needs a C++17 compiler."
            )

    def get_ext_filename(self, fullname: str) -> str:
        # No version of Python in the name: ctypes loads it in any.
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and every version of Python: the kernel knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=libraries(),
    cmdclass={"bdist_wheel": PlatformWheel, "build_ext": BuildLibraries},
)
