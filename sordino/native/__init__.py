"""The native engine: the local work of small networks in a compiled kernel.

    native_engine        the same interface as the torch engine
    jobs, step_rules     clients' assignments and a local rule in the kernel's terms
    translate            a module, traced with torch.fx, to a program, or the reason why not;
                         `layer_translations` has the layers, `network_builder` their shapes
    program              activations fused, frames of zeros, gradients that overwrite values
    kernel               programs, rules, records and jobs in the kernel's form, checked here
    given_losses         a kernel for models whose records say their own loss, for audits
    library, layout      which compiled library this processor takes, and whether its structures
                         are those of Python
    src/                 the kernel in C++; portable.cpp, avx2.cpp and avx512.cpp compile it

All checks are in Python: the kernel trusts its tables. Values lie as [channel][y][x][example], so a
register holds one value of several examples, and no loop has tail code for odd shapes. The build of
the package compiles the kernel once for every instruction set, each to a library that shares
nothing, because functions that a linker may merge must never mix instruction sets.

Engines and audits ask for all of this through `engines/compiled.py` alone.
"""
