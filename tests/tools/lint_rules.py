"""Each rule of tools/lint finds a breach planted for it, in a tree of its own: lint_rules.py LINT."""

import pathlib
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
    "plan/place/up.c": ("#include <plan/fold/fold.h>\n",
                        "a header of plan/fold, which plan/place may not use"),
    "tools/replay/up.c": ('#include "tools/cmd/plan_elastic.h"\n',
                          "a header of tools/cmd, which tools/replay may not use"),
    "runtime/base/up.h": ("#include <runtime/streams/pending_free.h>\n",
                          "a header of runtime/streams, which runtime/base may not use"),
    "runtime/face/lost.c": ("#include <runtime/heap.h>\n",
                            "a header of no folder, which runtime/face may not use"),
    "runtime/lost.c": ("int x;\n", "in a folder that is not in the table"),
    "runtime/follow/plans.c": ("#include <plan/sizes/planner.h>\n",
                               "a header of the planner where requests are served"),
    "vmm/name.c": ("/* see pleat_never_was */\n", "pleat_never_was, which does not exist"),
    "vmm/head.c": ("/*\n * body.c: what another file is.\n */\nint x;\n", "does not say the file's name"),
    "vmm/joined.c": ("/*\n * joined.c: made up.\n *\n * THREADS  None of its own. FREE   Any.\n */\n",
                     "a paragraph of a comment begins within a line"),
    "vmm/flush.c": ("/*\n * flush.c: made up.\n *\n * FREE  What is given back is\n"
                    " *       told by what\n * it was\n *       made for.\n */\n",
                    "a line of a comment has lost its indentation"),
    "docs/invariants.md": ("| R1 | all | `pleat__gone` | the same |\n", "pleat__gone does not exist"),
    "vmm/twice.h": ("typedef struct pleat__twice {\n    int a;\n} pleat__twice;\nstruct pleat__twice {\n    int b;\n};\n",
                    "pleat__twice is defined in vmm/twice.h, too"),
    "vmm/long.c": ("int x;\n" * 1001, "more than 1000 lines"),
    "vmm/space.c": ("int x; \n", "white space at the end"),
    "vmm/tab.c": ("\tint x;\n", "a tab"),
    "vmm/end.c": ("int x;", "no newline at the end"),
    "vmm/chosen.c": ("#define CHOSEN 7u\n", "CHOSEN has no row in docs/decisions.md that is cited here"),
}
# What a second file makes of it.
PLANNER = {"plan/place/greedy.c": "pleat_result pleat__place_all(void)\n{\n    return 0;\n}\n"}
CALLS = "void f(void)\n{\n    pleat__place_all();\n}\n"
CLEAN = {
    "plan/fold/down.c": "#include <plan/place/place.h>\n",
    "runtime/follow/sizes.c": "#include <plan/sizes/sizes.h>\n",
    "adapters/any.c": "#include <runtime/memory/heap.h>\n",
    "vmm/cuda_verbs.c": "void f(void) { cuMemUnmap(0, 0); }\n",
    "vmm/host/host.c": "void f(void) { munmap(0, 0); }\n",
    "plan/text.c": '/* abort() and cuMemMap() in words */\nchar t[] = "exit(1)";\n',
    "tools/end.c": "/* a prefix: pleat__, a name: pleat_is */\nvoid pleat_is(void) { exit(1); }\n",
}


def lint(files, edit=lambda text: text):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "tools").mkdir()
        text = LINT.read_text(encoding="utf-8")
        (root / "tools" / "lint").write_text(edit(text), encoding="utf-8")
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "" if text.startswith("/*\n") else f"/*\n * {path.name}: made up.\n */\n"
            path.write_text(head + text)
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

    def test_invariants_have_tests(self):
        page = {"docs/invariants.md": "| R1 | all | none | runtime_heap (heap_holds, heap_ends) |\n"}
        tests = "/* R1. */\nvoid heap_holds(void);\n"
        _, lines = lint({**page, "tests/heap.c": tests + "void heap_ends(void);\n"})
        self.assertFalse([l for l in lines if l.startswith("docs/")], lines)
        _, lines = lint({**page, "tests/heap.c": tests})
        self.assertTrue(any("there is no test heap_ends" in l for l in lines), lines)
        _, lines = lint({**page, "tests/heap.c": "void heap_holds(void);\n"})
        self.assertTrue(any("no test cites R1" in l for l in lines), lines)

    def test_what_is_allowed_is_not_reported(self):
        _, lines = lint(CLEAN)
        self.assertEqual([l for l in lines if l.startswith(tuple(CLEAN))], [])

    def test_what_serves_requests_calls_no_planner(self):
        expected = "a function of the planner where requests are served: pleat__place_all"
        for name in ("runtime/memory/calls.c", "runtime/follow/calls.c", "runtime/policy/calls.c",
                     "runtime/learn/calls.c"):
            with self.subTest(name):
                code, lines = lint({**PLANNER, name: CALLS})
                self.assertEqual(code, 1)
                self.assertIn(f"{name}:6: {expected}", lines)

    def test_what_serves_no_request_calls_the_planner(self):
        for name in ("runtime/learn/layout_job.c", "runtime/face/microbatch.c"):
            with self.subTest(name):
                _, lines = lint({**PLANNER, name: CALLS})
                self.assertEqual([l for l in lines if l.startswith(name)], [])

    def test_a_constant_has_a_row_that_is_cited_and_names_it(self):
        rows = {"docs/decisions.md": "| D7 | `CHOSEN` 7 | so |\n| D8 | `OTHER` 8 | so |\n"}
        for cited, found in (("D7", False), ("D6 to D9", False), ("D8", True), ("D70", True)):
            with self.subTest(cited):
                _, lines = lint({**rows, "vmm/chosen.c": f"/* {cited} */\n#define CHOSEN 7u\n"
                                                         "#define TWICE (2 * CHOSEN)\n"})
                self.assertEqual(any("CHOSEN has no row" in l for l in lines), found, lines)
                self.assertFalse(any("TWICE" in l for l in lines), lines)

    def test_folders_that_need_each_other_are_found_in_the_table(self):
        first = '("plan/base", ())'
        code, lines = lint({}, lambda text: text.replace(first, '("plan/base", ("plan/file",))'))
        self.assertEqual(code, 1)
        self.assertTrue(any("plan/file does not stand above plan/base" in l for l in lines), lines)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
