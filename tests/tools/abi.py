"""The functions that libpleat exports are those of tests/abi/functions: abi.py LIBRARY.

One that is gone breaks programs that call it; one that is new is to be on the list, and in CHANGELOG.md.
"""

import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = sys.argv.pop(1)


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


if __name__ == "__main__":
    unittest.main()
