"""Runs each command of the guides in docs/guides: guides.py PLEAT SNAPSHOT. They are the indented lines that begin with
`pleat`, in order, in a folder with job.pickle in it."""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLEAT, SNAPSHOT = sys.argv[1:3]
del sys.argv[1:3]


class Guides(unittest.TestCase):
    def test_each_command_does_what_the_guide_says(self):
        guides = sorted((ROOT / "docs/guides").glob("*.md"))
        self.assertGreater(len(guides), 2)
        for guide in guides:
            commands = [line[4:] for line in guide.read_text().splitlines() if line.startswith("    pleat ")]
            self.assertGreater(len(commands), 1, guide.name)
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(SNAPSHOT, os.path.join(folder, "job.pickle"))
                for command in commands:
                    with self.subTest(guide=guide.name, command=command):
                        words = shlex.split(command)
                        done = subprocess.run([PLEAT, *words[1:]], cwd=folder, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True)
                        if "dygraphs" in done.stdout and words[1] == "report":
                            continue  # this pleat draws no pages, which it says
                        self.assertEqual(done.returncode, 0, done.stdout)
                        for flag in ("-o", "--dump"):
                            if flag in words:
                                self.assertGreater(os.path.getsize(os.path.join(folder, words[words.index(flag) + 1])), 0)


if __name__ == "__main__":
    unittest.main()
