"""Where the parts of Pleat are that are not Python: where a variable of the environment says, in the package, or in the
source tree that the package is in."""

import os
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent
TREE = PACKAGE.parents[2]
# Of each variable where what it may name is in the package, and in a source tree.
PLACES = {
    "PLEAT_COMMAND": ("bin/pleat", "build/release/bin/pleat"),
    "PLEAT_INCLUDE": ("include/pleat/runtime.h", "include/pleat/runtime.h"),
    "PLEAT_LIBRARY": ("lib/libpleat.so.0", "build/release/lib/libpleat.so.0"),
    "PLEAT_NCCL": ("lib/libpleat_nccl.so", "build/release/lib/pleat/libpleat_nccl.so"),
    "PLEAT_NO_GPU": ("lib/libpleat_no_gpu.so", "build/release/lib/pleat/libpleat_no_gpu.so"),
}


def places(variable):
    asked = os.environ.get(variable)
    packaged, built = PLACES[variable]
    return [pathlib.Path(asked)] if asked else [PACKAGE / packaged, TREE / built]


def place(variable):
    """The first of its places that has a file; None: there is none."""
    return next((path for path in places(variable) if path.is_file()), None)


def missing(variable):
    """What is said where there is none."""
    name, looked = os.path.basename(PLACES[variable][0]), ", ".join(map(str, places(variable)))
    return ("%s is missing: looked for %s; install the package with pip, or build Pleat (cmake --preset release && "
            "cmake --build --preset release), or set %s" % (name, looked, variable))
