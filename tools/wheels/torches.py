"""torch's releases and their headers, from the wheels that pip fetches."""

import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

from pleat import _shim

PLATFORMS = ("manylinux1", "manylinux2014", "manylinux_2_28")
WITH_CUDA = "c10/cuda/impl/cuda_cmake_macros.h"  # made by a build with CUDA; all others are there without
OLD_ABI_BEFORE = (2, 7)  # wheels of these for x86-64 have _GLIBCXX_USE_CXX11_ABI=0, of 2.6 some
PYTHON = "3.11"  # whose wheels there are of each release


def cxx11_abis(version, processor):
    """What _GLIBCXX_USE_CXX11_ABI may be in builds of a release: the wheels', and others'."""
    return (0, 1) if _shim.numbers(version) < OLD_ABI_BEFORE and processor == "x86_64" else (1,)


def cxx11_abi(libraries):
    """What it is in a torch whose libraries lie in a folder: how its own error is constructed."""
    return int(b"_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx11" in pathlib.Path(libraries, "libc10.so").read_bytes())


def releases():
    """All from OLDEST on that pip finds and may install, the oldest first."""
    told = subprocess.run([sys.executable, "-m", "pip", "index", "versions", "torch"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    found = re.search(r"^Available versions: (.*)$", told.stdout, re.M)
    if found is None:
        raise OSError("pip finds no torch: %s" % (told.stderr.splitlines() or ["it says nothing"])[-1])
    known = {version.strip().split("+")[0] for version in found.group(1).split(",")}
    whole = [version for version in known if re.fullmatch(r"\d+(\.\d+)+", version)]
    return sorted((version for version in whole if _shim.numbers(version) >= _shim.OLDEST), key=lambda v: tuple(map(int, v.split("."))))


def fetch(version, folder, python=PYTHON, parts=("torch/include/",), processor=platform.machine()):
    """What of a release's wheel begins so, in a folder. CalledProcessError: pip has none for that processor."""
    with tempfile.TemporaryDirectory() as wheels:
        platforms = ["--platform=%s_%s" % (name, processor) for name in PLATFORMS]
        # A version of three signs is that one, and not a build of it with a suffix of its own ("+cpu").
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", wheels,
             "--only-binary=:all:", "--python-version", python, *platforms, "torch===" + version],
            check=True,
        )
        for wheel in pathlib.Path(wheels).glob("torch-*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                archive.extractall(folder, [name for name in names if name.startswith(parts)])


def headers(version, cache):
    """The folder that has a release's torch/include, fetched once."""
    folder = pathlib.Path(cache, version)
    if not (folder / "torch/include").is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            fetch(version, pathlib.Path(partial))
            os.rename(pathlib.Path(partial, "torch"), pathlib.Path(folder.parent, "." + version))
        folder.mkdir(exist_ok=True)
        os.rename(folder.parent / ("." + version), folder / "torch")
    return folder
