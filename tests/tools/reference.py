"""docs/reference.md has every key of the commands' JSON: reference.py PLEAT."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import made

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLEAT = sys.argv[1]
SAID = set(re.findall(r"`([A-Za-z_0-9]+)`", (ROOT / "docs/reference.md").read_text()))
KEY = re.compile(r'\bjson_(?:object|array|uint|double|bool|string|x)\(\s*&?\w+,\s*(?:[^"\n]*\? )?"(\w+)"(?: : "(\w+)")?')


def keys_of(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


class Reference(unittest.TestCase):
    def test_every_key_in_the_source_is_there(self):
        keys = set()
        for path in (ROOT / "tools").rglob("*.c"):
            for found in KEY.findall(path.read_text()):
                keys.update(filter(None, found))
        self.assertGreater(len(keys), 200)
        self.assertEqual(sorted(keys - SAID), [])

    def test_every_key_that_is_printed_is_there(self):
        """Those too whose names macros make."""
        with tempfile.TemporaryDirectory() as folder:
            job, plan = folder + "/job.pickle", folder + "/job.plan"
            made.record(job, [2] * 5)
            subprocess.run([PLEAT, "plan", job, "-o", plan], check=True, stdout=subprocess.DEVNULL)
            for command in (["version"], ["import", job], ["plan", job], ["verify", plan], ["replay", job],
                            ["compare", job, "-p", "native,pleat"], ["explain", job],
                            ["report", job, "-p", "native,expandable,pleat"], ["bench", "alloc", "-n", "1000"]):
                ran = subprocess.run([PLEAT, *command, "--json"], check=True, capture_output=True, text=True)
                self.assertEqual(sorted(set(keys_of(json.loads(ran.stdout))) - SAID), [], command)

    def test_values_of_settings_are_texts(self):
        said = json.loads(subprocess.run([PLEAT, "conf", "-j"], check=True, capture_output=True, text=True).stdout)
        self.assertEqual({type(value) for key, value in said.items() if key != "limits"}, {str})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
