"""Programs of another processor, run here: qemu's user emulation over a folder of the distribution's packages.

The folder is a root as that processor's machines have it, as far as a Python needs one: its packages and those that
they depend on, unpacked and not installed. apt fetches them by lists of its own, so this machine's do not change.
"""

import os
import pathlib
import shutil
import tempfile

from .cross import DEBIAN, Missing, run

PACKAGES = ("python3", "libstdc++6", "libgomp1")


def apt(processor, folder):
    """apt-get for that processor, in a folder, where nothing is installed."""
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text("")
    told = {"APT::Architecture": DEBIAN[processor], "APT::Architectures": DEBIAN[processor],
            "APT::Sandbox::User": "root", "Dir::State::Lists": folder / "lists", "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache"}
    return ["apt-get", "-q", *("-o%s=%s" % one for one in told.items())]


def unpack(processor, root):
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        folder = pathlib.Path(scratch)
        command = apt(processor, folder)
        run(*command, "update")
        run(*command, "install", "--yes", "--no-install-recommends", "--download-only", *PACKAGES)
        made = folder / "root"
        made.mkdir()
        for package in sorted(folder.glob("cache/archives/*.deb")):
            run("dpkg", "-x", package, made)
        os.rename(made, root)


def python(processor, folder):
    """The words that run that processor's Python; its root is made in the folder, once."""
    emulator = shutil.which("qemu-%s-static" % processor) or shutil.which("qemu-%s" % processor)
    if emulator is None:
        raise Missing("qemu-%s is not there: apt-get install qemu-user-static" % processor)
    root = pathlib.Path(folder, "root-" + processor)
    if not root.is_dir():
        root.parent.mkdir(parents=True, exist_ok=True)
        unpack(processor, root)
    return [emulator, "-L", str(root), str(root / "usr/bin/python3")]
