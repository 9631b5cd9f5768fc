"""Each rule of tools/lint finds a breach planted for it, in a tree of its own: lint_rules.py LINT."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

LINT = pathlib.Path(sys.argv[1])

# path -> text, and what the report must say of it
BREACHES = {
    "runtime/driver.c": ("void f(void) { cuMemUnmap(0, 0); }\n", "a driver function"),
    "tools/memory.c": ("void f(void) { munmap(0, 0); }\n", "a memory verb"),
    "tools/verb.c": ("void f(t *o) { o->ops->unmap(o->self, 0, 0); }\n", "a memory verb"),
    "plan/end.c": ("void f(void) { abort(); }\n", "the end of the process"),
    "plan/clock.c": ("#include <time.h>\n", "a clock or a thread"),
    "plan/up.c": ("#include <runtime/base/policy.h>\n", "a header of a layer it may not use"),
    "vmm/up.c": ('#include "pleat/plan.h"\n', "a header of a layer it may not use"),
    "include/up.h": ("#include <vmm/space.h>\n", "a header of a layer it may not use"),
    "runtime/up.c": ('#include "tools/cli.h"\n', "a header of a layer it may not use"),
    "vmm/name.c": ("/* see pleat_never_was */\n", "pleat_never_was, which does not exist"),
    "vmm/long.c": ("int x;\n" * 1001, "more than 1000 lines"),
    "vmm/space.c": ("int x; \n", "white space at the end"),
    "vmm/tab.c": ("\tint x;\n", "a tab"),
    "vmm/end.c": ("int x;", "no newline at the end"),
}
CLEAN = {
    "vmm/cuda_verbs.c": "void f(void) { cuMemUnmap(0, 0); }\n",
    "vmm/host.c": "void f(void) { munmap(0, 0); }\n",
    "plan/text.c": '/* abort() and cuMemMap() in words */\nchar t[] = "exit(1)";\n',
    "tools/end.c": "/* a prefix: pleat__, a name: pleat_is */\nvoid pleat_is(void) { exit(1); }\n",
}


def lint(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "tools").mkdir()
        shutil.copy(LINT, root / "tools" / "lint")
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, str(root / "tools" / "lint")], text=True,
                              capture_output=True)
        lines = done.stdout.splitlines()
        return done.returncode, [l for l in lines if "clang-format" not in l]


class LintRules(unittest.TestCase):
    def test_breaches_are_found(self):
        for name, (text, expected) in BREACHES.items():
            with self.subTest(name):
                code, lines = lint({name: text})
                self.assertEqual(code, 1)
                self.assertTrue(any(l.startswith(name) and expected in l for l in lines), lines)

    def test_what_is_allowed_is_not_reported(self):
        _, lines = lint(CLEAN)
        self.assertEqual([l for l in lines if l.startswith(tuple(CLEAN))], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
