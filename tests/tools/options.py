"""Every subcommand reads its line by one table: --help, bad options, values and operands.

usage: options.py PLEAT
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import here

PLEAT = sys.argv[1]
README = here.ROOT / "README.md"
COMMANDS = {  # what each takes besides options
    "compare": "one trace or more", "conf": None, "explain": "one trace or more", "export": "one trace",
    "import": "one recording", "plan": "a trace or a plan", "replay": "one trace",
    "remat": "one operator log", "report": "one trace", "verify": "one plan", "bench alloc": None,
    "bench pause": None, "bench turns": None, "bench vmm": None,
    "top": "?", "version": None,
}


def run(command, *arguments):
    return subprocess.run([PLEAT, *command.split(), *arguments], capture_output=True, text=True)


class Options(unittest.TestCase):
    def refused(self, command, *arguments):
        done = run(command, *arguments)
        self.assertEqual(done.returncode, 2, f"{command} {arguments}: {done.stderr}")
        self.assertEqual(done.stdout, "")
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 2, done.stderr)
        self.assertTrue(lines[0].startswith(f"pleat {command}: "), lines[0])
        self.assertEqual(lines[1], f"See 'pleat {command} --help'.")
        return lines[0]

    def test_help(self):
        for command in COMMANDS:
            for flag in ("--help", "-h"):
                done = run(command, flag)
                self.assertEqual((done.returncode, done.stderr), (0, ""), command)
                self.assertTrue(done.stdout.startswith(f"usage: pleat {command} "), command)
                self.assertIn("--json", done.stdout)
                for line in done.stdout.splitlines():
                    self.assertLessEqual(len(line), 100, f"{command}: {line}")

    def test_completions_know_every_option(self):
        """tools/documents tells an option from its help by two spaces: one had a single one before it."""
        documents = here.load(here.ROOT / "tools/documents")
        for command in COMMANDS:
            text = run(command, "--help").stdout
            made = documents.options(text)
            self.assertEqual([long for _, long, _, _ in made], re.findall(r"(?m)^ {2,6}(?:-\w, )?(--[a-z-]+)", text), command)
            self.assertTrue(all(about for _, _, _, about in made), made)

    def test_options(self):
        for command in COMMANDS:
            self.assertIn("'--nonsense' is no option", self.refused(command, "--nonsense", "a"))
            self.assertIn("no option '-Z'", self.refused(command, "-Z", "a"))
            self.assertIn("is no option", self.refused(command, "--json=yes", "a"))

    def test_operands(self):
        for command, wants in COMMANDS.items():
            if wants == "?":
                continue
            if wants is None:
                self.assertIn("takes no 'a'", self.refused(command, "a"))
                continue
            self.assertIn(f"takes {wants}, got none", self.refused(command))
            if wants.startswith("one ") and "more" not in wants:
                self.assertIn("'b' is one too many", self.refused(command, "a", "b"))

    def test_values(self):
        for command, option, value, text in [
            ("compare", "--budget", "many", "--budget is a size from 2.000 MiB to 65536.000 TiB, such as 512MiB or 80GiB, not 'many'"),
            ("compare", "--device-memory", "h2000", "a100-80"),
            ("plan", "--fit", "0", "--fit is a size from 2.000 MiB to 65536.000 TiB, such as 80GiB, or one of"),
            # A number without its unit: 80 bytes.
            ("compare", "--device-memory", "80", "from 2.000 MiB to 65536.000 TiB, such as 80GiB"),
            ("replay", "--budget", "80", "from 2.000 MiB to 65536.000 TiB, such as 512MiB"),
            # What is too large is refused in the same words.
            ("compare", "--device-memory", "65537TiB", "from 2.000 MiB to 65536.000 TiB, such as 80GiB"),
            ("compare", "--device-memory", "10EiB", "from 2.000 MiB to 65536.000 TiB, such as 80GiB"),
            ("replay", "--budget", "99999999999999999999", "from 2.000 MiB to 65536.000 TiB, such as 512MiB"),
            ("plan", "--chunk", "0", "--chunk is a power of two from 512 B to 1 TiB, as what devices map is (GPUs 2MiB), not '0'"),
            ("plan", "--chunk", "3MiB", "--chunk is a power of two from 512 B to 1 TiB"),
            ("plan", "--chunk", "3", "--chunk is a power of two from 512 B to 1 TiB"),
            ("plan", "--chunk", "2TiB", "--chunk is a power of two from 512 B to 1 TiB"),
            ("plan", "--chunk", "99999999999999999999", "--chunk is a power of two from 512 B to 1 TiB"),
            ("plan", "--chunk", "many", "--chunk is a power of two from 512 B to 1 TiB"),
            ("plan", "--output", "-", "--output is a file, not '-': standard output is for what is said"),
            ("plan", "--dump", "", "--dump is a file's name, not ''"),
            ("import", "-o", "-", "--output is a file, not '-'"),
            ("remat", "--times", "-1", "--times is a number from 1 to 1000, not '-1'"),
            ("remat", "--times", "nan", "--times is a number from"),
            ("import", "--iterations", "1.5", "--iterations is a whole number from 1 to 1000000"),
            # As in sizes: no powers of ten, and no other bases.
            ("import", "--iterations", "1e9", "--iterations is a whole number from 1 to 1000000, not '1e9'"),
            ("import", "--iterations", "0x10", "--iterations is a whole number from 1 to 1000000, not '0x10'"),
            ("replay", "--repeat", "1e2", "--repeat is a whole number from 11 to 1000000, not '1e2'"),
            ("remat", "--times", "1e1", "--times is a number from 1 to 1000, not '1e1'"),
            ("replay", "--repeat", "3x", "--repeat is a whole number from 11 to 1000000"),
            ("replay", "--repeat", "10", "--repeat is a whole number from 11 to 1000000"),
            ("compare", "--policies", "native,pleat,native", "the policy 'native' is named twice"),
            ("plan", "--at", "x", "--at is an x like 3, 5/2 or 2.5, not 'x'"),
            ("replay", "--backend", "hos", "--backend is one of host|cuda, not 'hos'"),
            ("replay", "--backend", "host|cuda", "--backend is one of"),
            ("export", "--format", "", "--format is one of"),
            ("compare", "--policies", "native,", "there is no policy ''"),
            ("compare", "--policies", "x" * 500, "there is no policy"),
            ("compare", "--policies", "pleat,natve", "there is no policy 'natve'; there are: native expandable"),
            ("replay", "--policy", "plaet", "pleat; did you mean 'pleat'?"),
            ("bench alloc", "--requests", "0", "--requests is a whole number from 1 to 4000000"),
            ("bench alloc", "--live", "", "--live is at most 8 whole numbers from 1 to 2000000"),
            ("bench alloc", "--live", "0", "with commas between them, not '0'"),
            ("bench alloc", "--live", "10,", "not '10,'"),
            ("bench alloc", "--live", "10,-1", "not '10,-1'"),
            ("bench alloc", "--live", "2000001", "not '2000001'"),
            ("bench alloc", "--live", "1,1,1,1,1,1,1,1,1", "at most 8 whole numbers"),
            ("bench pause", "--pin", "3MiB", "a multiple of 2 MiB"),
            ("bench vmm", "--stream", "33MiB", "a multiple of 32 MiB"),
            ("plan", "--algorithm", "foo", "no algorithm 'foo'; there are: auto size lifetime sweep stweaver"),
            ("plan", "--algorithm", "sweeep", "did you mean 'sweep'?"),
            ("plan", "--algorithm", "atuo", "did you mean 'auto'?"),
            ("plan", "--x", "2,4", "--x has 2 numbers for 1 trace"),
            ("plan", "--x", "2,", "whole numbers from 1 to 4294967295 with commas between them, not '2,'"),
            ("explain", "--block-ns", "5", "--block-ns is for --budget, which is not given"),
            ("explain", "--attention-ns", "5", "--attention-ns is for --budget, which is not given"),
            ("explain", "--link", "5", "--link is for --budget, which is not given"),
        ]:
            arguments = [option, value] + ([] if COMMANDS[command] is None else ["a"])
            self.assertIn(text, self.refused(command, *arguments))
        self.assertIn("wants a value", self.refused("compare", "a", "--budget"))
        self.assertIn("wants a value", self.refused("compare", "a", "-B"))

    def test_standard_output_by_another_name_is_no_file(self):
        """What is written into it would be mixed with what is said."""
        writers = (("import", "-o"), ("export", "-o"), ("plan", "-o"), ("plan", "--dump"), ("report", "-o"),
                   ("replay", "--dump"))
        for command, option in writers:
            for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
                self.assertIn(f"is a file, not '{name}': standard output is for what is said",
                              self.refused(command, "a", option, name))
            with tempfile.NamedTemporaryFile("w+") as said:
                done = subprocess.run([PLEAT, command, "a", option, said.name], stdout=said, stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, said.read()), (2, ""), done.stderr)
            # What keeps nothing is no place where both are mixed.
            done = subprocess.run([PLEAT, command, "a", option, "/dev/null"], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
            self.assertNotIn("standard output", done.stderr)

    def test_options_that_would_be_passed_by_are_refused(self):
        for line, text in [
            ("plan a -o b.plan -o c.plan", "--output is given twice, 'b.plan' and 'c.plan': one is written"),
            ("plan a --dump b --output c --dump c", "--dump is given twice, 'b' and 'c'"),
            ("replay a --dump b --dump b", "--dump is given twice, 'b' and 'b'"),
            ("remat a -p coop --chunk 4MiB", "--chunk is what stitched maps, 'coop' maps nothing"),
            ("plan a b --no-recipe", "--no-recipe is for one trace of one size"),
            ("plan a --x 2 --no-recipe", "--no-recipe is for one trace of one size"),
            ("plan a b --x 2,4 --max 3", "--max 3 is less than the largest x of --x, 4"),
            ("plans remove --all --json", "--json is for list and show"),
            ("plans remove a --json", "--json is for list and show"),
            ("tenants --json -P", "--json and --prometheus are two forms: choose one"),
            ("tenants remove-dead --json", "--json and --prometheus are options of list and watch"),
            ("tenants reclaim a -P", "--json and --prometheus are options of list and watch"),
        ]:
            command, *arguments = line.split()
            self.assertIn(text, self.refused(command, *arguments))

    def test_sizes_are_read_alike(self):
        """Powers of 1024, in letters of either case; of numbers only decimals."""
        path = self.table("1,0,5,52428800\n2,1,7,104857600\n")
        for size in ("20gib", "20GB", "20g", "20Gi", "20.0GiB", "20480mib", "20971520K", "21474836480", "21474836480b"):
            told = json.loads(run("compare", path, "-p", "native", "-d", size, "--json").stdout)
            self.assertEqual(told["fits"]["device_bytes"], 20 << 30, size)
        for size in ("0x50000000", "1e10", "20giB2", "20gg", "20 GiB", "nan", "inf", "-1GiB", "+1GiB", ".5GiB", "1e3GiB", ""):
            self.assertIn("such as 80GiB", self.refused("compare", "a", "-d", size))
        for command in ("compare", "plan", "tenants", "bench vmm"):
            self.assertIn("sizes: powers of 1024, such as 64KiB, 20GiB", run(command, "--help").stdout)

    def test_a_gpu_has_the_same_memory_everywhere(self):
        path = self.table("1,0,5,52428800\n2,1,7,104857600\n")
        told = json.loads(run("compare", path, "-p", "native", "-d", "h200", "--json").stdout)
        trace = path + ".trace"
        self.addCleanup(os.remove, trace)
        self.assertEqual(json.loads(run("import", path, "-o", trace, "-d", "h200", "--json").stdout)["device_bytes"],
                         told["fits"]["device_bytes"])

    def test_a_device_too_small_for_anything_runs_out_of_memory(self):
        """It once was as large as any other, or broke expandable segments."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write("id,lower,upper,size\n1,0,5,52428800\n2,1,7,104857600\n")
            table.flush()
            for size in ("2MiB", "3MiB", "64MiB"):
                done = run("compare", table.name, "--device-memory", size)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(len([l for l in done.stdout.splitlines() if l.endswith("  out of memory")]), 5)
                self.assertIn("does not fit under Pleat", done.stdout)

    def test_a_choice_that_is_none_is_named_with_those_there_are(self):
        for line, text in [("bench foo", "there is no measurement 'foo'; there are: alloc pause turns vmm"),
                           ("bench paus", "did you mean 'pause'?"),
                           ("plans foo", "there is no command 'foo'; there are: list show remove"),
                           ("plans shw", "there are: list show remove; did you mean 'show'?"),
                           ("plans show", "show takes one PLAN"), ("plans remove", "remove takes a PLAN or more"),
                           ("plans --all", "--all is for remove"), ("plans list x", "list takes no PLAN"),
                           ("tenants foo", "there is no command 'foo'; there are: list watch set reclaim remove-dead"),
                           ("tenants wach", "did you mean 'watch'?"), ("tenants set", "set takes one TENANT"),
                           ("tenants watch x", "watch takes no operand")]:
            command, *operands = line.split()
            self.assertIn(text, self.refused(command, *operands))
        self.assertIn("--x has 1 number for 2 traces", self.refused("plan", "a", "b", "--x", "2"))

    def table(self, lines):
        """A table of lifetimes."""
        table = tempfile.NamedTemporaryFile("w", suffix=".csv")
        self.addCleanup(table.close)
        table.write("id,lower,upper,size\n" + lines)
        table.flush()
        return table.name

    def test_sizes_that_show_no_microbatch_name_the_recordings(self):
        path = self.table("1,0,5,52428800\n2,1,7,104857600\n")
        for command in ("compare", "explain"):
            done = run(command, path, path)
            self.assertEqual(done.returncode, 3)
            self.assertTrue(done.stderr.startswith(f"pleat {command}: '{path}', '{path}': of the iteration's 2 requests "
                                                   "0 change size over 2 iterations: "),
                            done.stderr)

    def test_a_plan_that_does_not_fit_has_no_figures(self):
        done = run("compare", self.table("1,0,5,52428800\n2,1,7,104857600\n"), "-d", "80MiB", "--no-fit")
        self.assertRegex(done.stdout, r"(?m)^stweaver \*( +-){8}  out of memory$")
        self.assertNotRegex(done.stdout, r"\b0\.000 ")

    def test_one_is_not_several(self):
        path = self.table("1,0,5,52428800\n")
        plan = path + ".plan"
        self.addCleanup(lambda: os.path.exists(plan) and os.remove(plan))
        said = [run("explain", path), run("plan", path, "-o", plan), run("plan", plan), run("verify", plan),
                run("import", path), run("export", path, "-f", "csv", "-o", path + ".x")]
        self.addCleanup(os.remove, path + ".x")
        for done in said:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotRegex(done.stdout, r"\b1 (requests|tensors|steps|handles|lanes|maps|iterations|events)\b")

    def test_the_command_itself(self):
        done = subprocess.run([PLEAT, "--help"], capture_output=True, text=True)
        for command in [c for c in COMMANDS if " " not in c] + ["bench", "run"]:
            self.assertRegex(done.stdout, f"(?m)^  {command} ")
        self.assertEqual(run("help").stdout, done.stdout)
        # What people begin with comes first, here as in the README.
        names = re.findall(r"(?m)^  (\w+) ", done.stdout)
        self.assertEqual(names[:5], ["run", "estimate", "import", "explain", "plan"])
        self.assertEqual(names, list(dict.fromkeys(re.findall(r"(?m)^\| `pleat (\w+)", README.read_text()))))
        for command in COMMANDS:
            self.assertEqual(run("help " + command).stdout, run(command, "--help").stdout, command)
        self.assertEqual(run("help nonsense").returncode, 2)
        said = run("version").stdout
        self.assertRegex(said, r"^pleat \d+\.\d+\.\d+\n$")
        told = json.loads(run("version", "--json").stdout)
        self.assertEqual(told["version"], said.split()[1])
        self.assertIn(told["draws_pages"], (True, False))
        for flag in ("--version", "-V"):
            self.assertEqual(subprocess.run([PLEAT, flag], capture_output=True, text=True).stdout, said)

    def test_what_was_meant(self):
        for line, meant in [("exlpain", "explain"), ("hepl", "help"), ("repotr", "report"), ("compare --buget 1GiB", "--budget"),
                            ("compare -p nativ x", "native"), ("replay --alternat x", None)]:
            done = run(*line.split())
            self.assertEqual(done.returncode in (2, 3), True, line)
            self.assertEqual("did you mean" in done.stderr, meant is not None, done.stderr)
            self.assertIn(f"did you mean '{meant}'?" if meant else "", done.stderr)
        self.assertNotIn("did you mean", run("zzzzzzzz").stderr)

    def test_settings_that_were_meant(self):
        for conf, said in (("kep:on", "there is no setting 'kep'; there are: small "), ("kep:on", " grace_ms; did you mean 'keep'?\n"),
                           ("zzzzzzzz:1", " grace_ms\n"),
                           # A part of a byte, or of anything that is counted, was left out without a word.
                           ("small:1.5", "not '1.5'"), ("views:1.5", "not '1.5'"), ("small:1.5b", "not '1.5b'")):
            done = subprocess.run([PLEAT, "conf"], capture_output=True, text=True, env={**os.environ, "PLEAT_CONF": conf})
            self.assertEqual(done.returncode, 2, conf)
            self.assertIn(said, done.stderr)
        done = subprocess.run([PLEAT, "conf", "-j"], capture_output=True, text=True,
                              env={**os.environ, "PLEAT_CONF": "small:1.5k,views:1.5k"})
        self.assertEqual([json.loads(done.stdout)[key] for key in ("small", "views")], ["1536", "1536"])

    def test_a_decimal_comma_is_named(self):
        for settings, says in (("small:1,5k", "'5k' behind 'small:1' is not key:value: a comma ends a setting"),
                               ("learn:on,small:1,5", "'5' behind 'small:1' is not"), ("5k", "PLEAT_CONF: '5k' is not key:value\n"),
                               ("small:1,views", "PLEAT_CONF: 'views' is not key:value\n")):
            done = subprocess.run([PLEAT, "conf"], capture_output=True, text=True, env={**os.environ, "PLEAT_CONF": settings})
            self.assertIn(says, done.stderr)

    def test_names_of_files_are_no_commands_to_a_terminal(self):
        for arguments in (("import", "new\nline\x1b[31m.x"), ("import", "x", "--none\n\x1b[31m")):
            done = subprocess.run([PLEAT, *arguments], capture_output=True, text=True)
            self.assertNotIn("\x1b", done.stderr)
            self.assertIn(r"\n", done.stderr)
            self.assertIn(r"\x1b[31m", done.stderr)

    def test_a_command_that_was_copied_says_what_it_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(PLEAT, folder)
            for name in ("run", "estimate", "libtorch"):
                done = subprocess.run([copy, name, "--", "true"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 5)
                self.assertIn(f"pleat {name}: 'pleat-{name}' is not beside", done.stderr)
                self.assertIn("moved or copied", done.stderr)

    def test_words_and_widths(self):
        words = run("help words").stdout
        for word in ("max-live", "physical", "view", "lane", "handle", "alias", "scoped", "x", "cached", "folded", "layout",
                     "remaps", "mark", "label", "segment", "metadata", "rest", "within"):
            self.assertRegex(words, rf"(?m)^{word} |\b{word} is")
        narrow = {**os.environ, "COLUMNS": "60"}
        for command in [c + " --help" for c in COMMANDS] + ["help words", "--help"]:
            done = subprocess.run([PLEAT, *command.split()], capture_output=True, text=True, env=narrow)
            self.assertEqual(max(len(line) for line in done.stdout.splitlines()) <= 60, True, done.stdout)
            # Broken between words, and nothing is lost.
            whole = subprocess.run([PLEAT, *command.split()], capture_output=True, text=True).stdout
            self.assertEqual("".join(done.stdout.split()), "".join(whole.split()))

    def test_a_full_disk_is_no_answer(self):
        """Nor is an output that was closed; lines that are broken are lost as whole ones are."""
        path = self.table("1,0,5,52428800\n2,1,7,104857600\n")
        for command in ("--help", "help words", "plan --help", "version", "conf", "conf --json", "top", "plans",
                        "explain " + path, "plan -j " + path, "import " + path, "replay " + path):
            for where, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
                for columns in ({}, {"COLUMNS": "80"}):
                    done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {where}', PLEAT, *command.split()],
                                          capture_output=True, text=True, env={**os.environ, **columns})
                    self.assertEqual(done.returncode, 5, (command, where, columns))
                    self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                    self.assertIn("standard output cannot be written: " + why, done.stderr)

    def test_tables_end_where_their_text_does(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write("id,lower,upper,size\n1,0,5,52428800\n2,1,7,104857600\n")
            table.flush()
            for command in ("import", "plan", "replay", "compare", "explain"):
                done = run(command, table.name)
                self.assertEqual(done.returncode, 0, done.stderr)
                for line in done.stdout.splitlines():
                    self.assertEqual(line, line.rstrip(), command)
                self.assertNotRegex(done.stdout, r"\de[+-]\d", command)

    def test_figures_keep_their_units(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write("id,lower,upper,size\n1,0,5,52428800\n2,1,7,104857600\n3,2,3,734003200\n")
            table.flush()
            for columns in range(60, 100, 3):
                done = subprocess.run([PLEAT, "explain", table.name], capture_output=True, text=True,
                                      env={**os.environ, "COLUMNS": str(columns)})
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotRegex(done.stdout, r"(?m)^ *(%|[KMG]iB)|1 steps")

    def test_names_of_gpus(self):
        """A known name passes the reader: what is refused is the file."""
        for value in ("h200", "H200", "a100-80", "80GiB"):
            done = run("compare", "/nowhere/job.trace", "--device-memory", value)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("/nowhere/job.trace", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
