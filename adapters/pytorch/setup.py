"""Builds libpleat and the command with CMake into the package; the C++ shim is built where torch is, at first use.

Needs what Pleat's own build needs: `tools/setup --minimal` in the source tree installs it. tools/wheel has
compiled all of it beforehand, and names the folder in $PLEAT_CONTENTS.
"""

import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(*command):
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    except OSError as problem:
        sys.exit("pleat: %s: %s; tools/setup --minimal in %s installs it" % (command[0], problem, ROOT))
    if done.returncode:
        sys.exit("%s\npleat: libpleat was not built; tools/setup --minimal in %s installs what is "
                 "missing" % (done.stdout, ROOT))


def generator():
    """Ninja, which tools/setup installs: CMake would take make, which need not be there."""
    return ["-G", "Ninja"] if "CMAKE_GENERATOR" not in os.environ and shutil.which("ninja") else []


class Build(build_py):
    def run(self):
        super().run()
        # Read by Python at its start, beside the package; see _environment.py.
        shutil.copy(HERE / "pleat.pth", pathlib.Path(self.build_lib, "pleat.pth"))
        if "PLEAT_CONTENTS" in os.environ:
            shutil.copytree(os.environ["PLEAT_CONTENTS"], pathlib.Path(self.build_lib, "pleat"), dirs_exist_ok=True)
            return
        if not (ROOT / "CMakePresets.json").is_file():
            sys.exit("pleat: install from the folder adapters/pytorch of the source tree")
        if getattr(self, "editable_mode", False):
            sys.exit("pleat: an editable installation would have no libpleat: install without -e, or "
                     "build Pleat (cmake --preset release && cmake --build --preset release), whose "
                     "'build/release/bin/pleat run' uses the package where it is")
        # A folder of its own: one that is kept knows where the tree was, which may have moved since.
        with tempfile.TemporaryDirectory() as build:
            self.take(pathlib.Path(build))

    def take(self, build):
        """Builds libpleat and the command in a folder, and puts them into the package."""
        run("cmake", *generator(), "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_TESTING=OFF")
        run("cmake", "--build", build, "--parallel", "--target", "pleat", "pleat_command", "pleat_no_gpu", "pleat_nccl")
        package = pathlib.Path(self.build_lib, "pleat")
        (package / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy(build / "lib" / "libpleat.so.0", package / "lib" / "libpleat.so.0")
        for name in ("libpleat_no_gpu.so", "libpleat_nccl.so"):
            shutil.copy(build / "lib/pleat" / name, package / "lib")
        (package / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(build / "bin" / "pleat", package / "bin" / "pleat")
        shutil.copytree(ROOT / "include" / "pleat", package / "include" / "pleat",
                        dirs_exist_ok=True)


class NoSources(sdist):
    """Of this folder alone nothing can be installed: libpleat's sources are beside it."""

    def run(self):
        sys.exit("pleat: an sdist would have no libpleat in it and could not be installed: build a wheel (pip wheel "
                 "--no-deps %s), or take the whole source tree" % HERE)


class Native(Distribution):
    """The wheel is for this platform: it holds libpleat."""

    def has_ext_modules(self):
        return True


COMMANDS = {"build_py": Build, "sdist": NoSources}
if "PLEAT_PROCESSOR" in os.environ:
    from setuptools.command.bdist_wheel import bdist_wheel

    class Tag(bdist_wheel):
        """A wheel that tools/wheel makes is for a processor, and for every Python."""

        def get_tag(self):
            return "py3", "none", "linux_" + os.environ["PLEAT_PROCESSOR"]

    COMMANDS["bdist_wheel"] = Tag

# What setuptools makes on the way would lie beside the sources, and stay.
WORK = tempfile.mkdtemp(prefix="pleat-build-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

setup(
    options={"build": {"build_base": WORK}, "egg_info": {"egg_base": WORK}},
    # As a field of pyproject.toml its form depends on setuptools' version: none takes both.
    license="Apache-2.0",
    packages=["pleat", "pleat._recompute", "pleat._site"],
    package_data={"pleat": ["*.cpp", "*.h"]},
    cmdclass=COMMANDS,
    distclass=Native,
)
