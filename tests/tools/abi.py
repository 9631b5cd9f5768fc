"""The functions that libpleat exports are those of tests/abi/functions: abi.py LIBRARY COMMAND.

One that is gone breaks programs that call it; one that is new is to be on the list, and in CHANGELOG.md.
What both ask the C library for is there in the oldest one that a wheel serves.
"""

import re
import subprocess
import sys
import unittest

from here import ROOT  # first: it knows where the tools are
from wheels.cross import GLIBC

LIBRARY = sys.argv.pop(1)
COMMAND = sys.argv.pop(1)
# What later C libraries have by a new version of their own, and older ones by another name or version, which a wheel's
# compiler takes. Functions of libpthread and libdl have been libc's since 2.34.
MOVED = re.compile(r"f?stat|lstat|fstatat|pthread_\w+|dl\w+|__libc_start_main|__isoc23_\w+|exp2?|log2?|pow|fmod")


def numbers(version):
    return tuple(map(int, version.split(".")))


class Abi(unittest.TestCase):
    def test_the_exported_functions_are_the_listed_ones(self):
        told = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], stdout=subprocess.PIPE, text=True, check=True).stdout
        symbols = [line.split()[-2:] for line in told.splitlines()]
        self.assertEqual({kind for kind, _ in symbols}, {"T"}, "something that is no function is exported")
        listed = (ROOT / "tests/abi/functions").read_text().split()
        self.assertEqual(sorted(name for _, name in symbols), sorted(listed))

    def test_each_is_declared_in_a_public_header(self):
        texts = "".join(path.read_text() for path in (ROOT / "include/pleat").glob("*.h"))
        declared = set(re.findall(r"\b(pleat_\w+)\(", texts))
        listed = (ROOT / "tests/abi/functions").read_text().split()
        self.assertEqual([name for name in listed if name not in declared], [])

    def test_nothing_is_asked_of_a_c_library_newer_than_the_wheels(self):
        for program in (LIBRARY, COMMAND):
            told = subprocess.run(["readelf", "--dyn-syms", "-W", program], stdout=subprocess.PIPE, text=True, check=True).stdout
            asked = re.findall(r" UND (\w+)@GLIBC_([\d.]+)", told)
            self.assertTrue(asked)
            self.assertEqual([name for name, version in asked if numbers(version) > numbers(GLIBC) and
                              not MOVED.fullmatch(name)], [], program)


if __name__ == "__main__":
    unittest.main()
