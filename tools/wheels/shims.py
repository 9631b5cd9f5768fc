"""Shims for releases of torch, and what serves where none fits: adapters/pytorch/pleat's C++ files, built ahead.

Of torch a shim needs headers to be built, and names of its libraries. It is not linked with CUDA's runtime:
that of torch's own libraries serves it, of CUDA 12 and 13 alike.
"""


from pleat import _shim

from . import torches
from .cross import ROOT

TORCHS = ("libc10.so", "libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
BESIDE_LIBRARY = "-Wl,-rpath,$ORIGIN/../lib"  # where the package has libpleat


def options(version, abi, include, cuda):
    """The compiler's, as _shim.py gives them where it compiles."""
    given = _shim.options(include.parent, abi, _shim.numbers(version))
    for folder in (include, include / "torch/csrc/api/include", *cuda):
        given += ["-isystem", str(folder)]
    return given


def build(cross, version, include, cuda, libpleat, output):
    """The shims for one release, into the folder `output`; returns the names of those that are new: releases
    whose headers are the same have the same."""
    made = []
    for abi in torches.cxx11_abis(version, cross.processor):
        name = _shim.wheels_name(include, _shim.numbers(version), abi)
        if (output / name).exists():
            continue
        scratch = cross.folder / "shim.o"
        # What a build with CUDA has and one for CPUs lacks, to whose headers this is blind.
        generated = cross.folder / "generated" / torches.WITH_CUDA
        generated.parent.mkdir(parents=True, exist_ok=True)
        generated.write_text("#pragma once\n")
        cross.compile(_shim.PACKAGE / "shim.cpp", scratch, *options(version, abi, include, cuda),
                      "-idirafter", cross.folder / "generated")
        cross.link(output / name, [scratch], [*map(cross.placeholder, TORCHS), libpleat], BESIDE_LIBRARY)
        made.append(name)
    return made


def build_hooks(cross, libpleat, output):
    scratch = cross.folder / "hooks.o"
    cross.compile(_shim.PACKAGE / "hooks.cpp", scratch, "-std=c++17", "-I%s" % (ROOT / "include"))
    cross.link(output / "hooks.so", [scratch], [libpleat], BESIDE_LIBRARY)
