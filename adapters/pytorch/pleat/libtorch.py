"""Builds Pleat's allocator for C++ programs that use libtorch without Python: `pleat libtorch DIR -o LIBRARY`."""

import os
import pathlib
import re
import sys

from . import UnavailableError, _plans, _shim, _signals, run

BAD_FILE, FAILED = 3, 5


def parser():
    made = run.Parser(
        prog="pleat libtorch",
        usage="pleat libtorch DIR [-o LIBRARY]",
        description="Builds Pleat's allocator for C++ programs that use the libtorch in DIR without Python.",
        epilog="LD_PRELOAD=LIBRARY PLEAT=1 PROGRAM runs a program with it; pleat/torch.h says how a program calls it "
        "itself. It is compiled with $CXX, or the first compiler that is there, and needs CUDA's headers.",
    )
    made.add_argument("folder", metavar="DIR", help="libtorch's folder, with include/ and lib/; that of a Python's "
                      "torch does as well")
    made.add_argument("-o", "--output", action=run.FileName, default="libpleat_torch.so", metavar="LIBRARY", help="[libpleat_torch.so]")
    return made


def read(path):
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as problem:
        raise UnavailableError("%s: %s: DIR is to be libtorch's folder" % (path, problem.strerror)) from None


def version(folder):
    text = read(folder / "include/torch/headeronly/version.h" if (folder / "include/torch/headeronly/version.h").is_file()
                else folder / "include/torch/csrc/api/include/torch/version.h")
    found = [re.search(r"#define TORCH_VERSION_%s (\d+)" % part, text) for part in ("MAJOR", "MINOR")]
    if None in found:
        raise UnavailableError("%s: torch's header has no version" % folder)
    return tuple(int(one.group(1)) for one in found)


def abi(folder):
    """torch's _GLIBCXX_USE_CXX11_ABI: its CMake files say it, of releases that have but one they need not."""
    config = folder / "share/cmake/Torch/TorchConfig.cmake"
    found = re.search(r"_GLIBCXX_USE_CXX11_ABI=(\d)", read(config)) if config.is_file() else None
    return int(found.group(1)) if found else 1


def command(folder, output):
    if version(folder) < (2, 5):
        raise UnavailableError("libtorch %d.%d: 2.5 or later is needed" % version(folder))
    line = _shim.command(folder, abi(folder), version(folder), output)
    # Python is what a program without it does not have.
    line.remove("-ltorch_python")
    line[line.index(str(_shim.PACKAGE / "shim.cpp"))] = str(_shim.PACKAGE / "libtorch.cpp")
    return line


@_signals.ending_by_interrupts
def main(arguments=None):
    run.stand_for_closed()
    options = parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    folder = pathlib.Path(options.folder).resolve()
    wrong = _plans.cannot_write(options.output)
    if wrong:
        run.fail(BAD_FILE, "-o: " + wrong, "libtorch")
    output = os.path.abspath(options.output)
    try:
        version(folder)
    except UnavailableError as problem:
        run.fail(BAD_FILE, str(problem), "libtorch")
    _signals.end_in_order()
    try:
        line = command(folder, output)
        _shim.compile_with(line, _signals.run_apart)
    except UnavailableError as problem:
        run.fail(FAILED, str(problem).replace("pleat: ", "", 1), "libtorch")
    run.say(output + "\n", "libtorch")
