"""The native engine's parts: `translate` a module into a program, `library` finds the compiled kernel, `kernel` runs programs in it.

The kernel itself is C++ in `src/`; the package's build compiles it once for every instruction set, if there is a compiler.
"""
