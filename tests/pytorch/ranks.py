"""Jobs of several ranks without a GPU: ranks.py. What the first process tells of them, plans that they share, and, where
this Python has a torch, that torchrun's workers are heard."""

import contextlib
import functools
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

from here import ADAPTER  # first: it knows where the package is
import suite
from pleat import _first, _job, _plans, _ranks, run

GIB = 1 << 30

# A rank that was served, with counters as they would be.
RANK = """
import os, sys
from pleat import _first, _ranks
rank = int(os.environ["RANK"])
counters = {"peak_live_bytes": 3 << 30, "peak_physical_bytes": (3 << 30) + (rank << 28), "requests": 1000,
            "planned": 900, "lane": 0, "waited_ns": rank * 10**6, "fingerprint": "%016x" % (rank // 2)}
_first.served(os.environ, _ranks.record([(0, counters)]))
"""


def counters(live, physical, **more):
    return dict({"peak_live_bytes": live, "peak_physical_bytes": physical, "requests": 100, "planned": 80, "lane": 10},
                **more)


def record(rank, ranks, physical=2 * GIB, job="", **more):
    return {"rank": str(rank), "ranks": str(ranks), "host": "n%d" % (rank // 8), "job": job,
            "devices": {"0": counters(GIB, physical, **more)}}


class Summary(unittest.TestCase):
    def test_the_worst_rank_is_named(self):
        records = [record(rank, 8, 2 * GIB + (GIB if rank == 5 else 0)) for rank in range(8)]
        said = _ranks.summary(records)
        self.assertEqual(said[0], "pleat: 8 ranks: peak allocated 1.000 GiB, physical 2.000 to 3.000 GiB, 33.33 to 50.00 %"
                                  " of it in use, 90.0 % of the requests planned")
        self.assertEqual(said[1], "pleat: the worst is rank 5 (device 0 of n0): physical 3.000 GiB for 1.000 GiB allocated"
                                  " (33.33 % of it in use)")
        self.assertEqual(len(said), 2)

    def test_who_waited_longest_and_who_is_missing_is_said(self):
        said = _ranks.summary([record(0, 4, waited_ns=5), record(3, 4, waited_ns=2 * 10**9)])
        self.assertIn("pleat: 2 ranks of 4: ", said[0])
        self.assertEqual(said[2], "pleat: rank 3 waited longest for memory: 2.000 s")

    def test_ranks_that_ask_for_the_same_are_told_together(self):
        records = [record(rank, 6, fingerprint="%016x" % (rank in (0, 5))) for rank in range(6)]
        self.assertEqual(_ranks.groups(records), [[1, 2, 3, 4], [0, 5]])
        self.assertIn("pleat: they ask for the same memory in ranks 1-4; ranks 0, 5", _ranks.summary(records))
        # Nothing is said where each asks for something else, or where nothing was recorded.
        for records in ([record(rank, 3, fingerprint=str(rank)) for rank in range(3)], [record(0, 2), record(1, 2)]):
            self.assertEqual(len(_ranks.summary(records)), 2)

    def test_one_process_has_no_summary(self):
        self.assertEqual(_ranks.summary([]), [])
        self.assertEqual(_ranks.summary([record(0, 1)]), [])

    def test_lines_that_are_no_records_are_left_out(self):
        good = record(1, 2)
        bad = ["", "{", "[]", "1", "null", "[" * 100000, json.dumps({}), json.dumps(dict(good, rank=None)),
               json.dumps(dict(good, rank="-1")), json.dumps(dict(good, devices=[])),
               json.dumps(dict(good, devices={"0": {}})), json.dumps(dict(good, devices={"0": counters(1, "2")})),
               json.dumps(dict(good, rank="\u00b2")), json.dumps(dict(good, devices={"0": counters(10**400, 2)})),
               json.dumps(dict(good, devices={"0": dict(counters(1, 2), waited_ns="x")})),
               json.dumps(dict(good, devices={"0": counters(-1, 2)})), json.dumps(dict(good, devices={}))]
        self.assertEqual(_ranks.parse(bad), [])
        # Of a rank that was started again the last one counts.
        again = record(1, 2, 3 * GIB)
        self.assertEqual(_ranks.parse([json.dumps(good), *bad, json.dumps(again)]), [again])

    def test_many_ranks_are_told_in_one_line(self):
        text = _ranks.named(range(0, 20000, 2))
        self.assertTrue(text.startswith("0, 2, 4, "))
        self.assertTrue(text.endswith(" and 9984 more"))


class Board(unittest.TestCase):
    """The first process hears of the others."""

    def run_it(self, program, *options, **environment):
        made = run.environment(run.parse([*options, "--", "true"]), dict(os.environ, PYTHONPATH=str(ADAPTER), **environment))
        done = subprocess.run([sys.executable, "-m", "pleat.run", *options, "--", sys.executable, "-c", program],
                              cwd=str(ADAPTER), env=made, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    PARENT = ("import os, subprocess, sys\n"
              "for rank in range(%d): subprocess.run([sys.executable, '-c', %r], check=True,\n"
              "    env=dict(os.environ, RANK=str(rank), WORLD_SIZE='%d'))")

    def test_more_ranks_than_a_sockets_queue_holds_are_heard(self):
        said = self.run_it(self.PARENT % (14, RANK, 14))
        self.assertIn("pleat: 14 ranks: ", said)
        self.assertIn("pleat: the worst is rank 13 ", said)
        self.assertIn("ranks 0-1; ranks 2-3; ", said)
        self.assertEqual(self.run_it(self.PARENT % (2, RANK, 2), "--quiet"), "")

    def test_a_descriptor_that_is_another_file_now_is_not_written(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = os.path.join(folder, "checkpoint")
            taken = ("import os, subprocess, sys\n"
                     "process, file, inode = os.environ['PLEAT_RUN_BOARD'].split(':')\n"
                     "os.dup2(os.open(%r, os.O_RDWR | os.O_CREAT), int(file))\n" % mine)
            said = self.run_it(taken + self.PARENT % (2, RANK, 2))
            self.assertEqual(os.path.getsize(mine), 0)
            self.assertIn("nothing was allocated on a GPU", said)

    def test_a_program_that_closes_it_was_served_all_the_same(self):
        served = "import os\nos.environ.update(RANK='0', WORLD_SIZE='1')\n%s\nos.closerange(3, 64)\n"
        self.assertEqual(self.run_it(served % RANK), "")
        self.assertIn("nothing was allocated on a GPU", self.run_it(served % ""))

    def test_what_a_rank_says_is_one_piece(self):
        """In an interpreter that keeps nothing back (PYTHONUNBUFFERED), too."""
        with mock.patch("sys.stderr") as said, mock.patch.dict(os.environ, RANK="1", WORLD_SIZE="2"):
            _job.say("pleat: a line")
        self.assertEqual(said.write.call_args_list[0], mock.call("[rank 1] pleat: a line\n"))

    def test_what_is_no_board_is_not_written(self):
        for wrong in ("", "1", "a:b:c", "%d:999:5" % os.getpid(), "99999999:3:5", "-1:0:0"):
            _first.served({"PLEAT_RUN_BOARD": wrong}, {})
        with tempfile.NamedTemporaryFile() as file:
            inode = os.fstat(file.fileno()).st_ino
            _first.served({"PLEAT_RUN_BOARD": "%d:%d:%d" % (os.getpid(), file.fileno(), inode)}, {"a": 1})
            self.assertEqual(file.read(), b"")  # which has a name, and so is none of ours


class Files(unittest.TestCase):
    """Over several hosts: who writes the last file tells of all."""

    def written(self, folder, order, ranks, name="c.json"):
        said = {}
        for rank in order:
            environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "PLEAT_RUN": "on"}
            with contextlib.redirect_stderr(io.StringIO()) as told:
                _job.write_counters(os.path.join(folder, name), [(0, counters(GIB, 2 * GIB + rank))], environment)
            said[rank] = told.getvalue()
        return said

    def test_the_last_one_tells_of_all(self):
        for name in ("c.json", "c%r.json", "%w/c%r.json"):
            with tempfile.TemporaryDirectory() as folder:
                said = self.written(folder, [2, 0, 1], 3, name)
                self.assertEqual((said[2], said[0]), ("", ""))
                self.assertIn("pleat: 3 ranks: ", said[1])
                self.assertIn("the worst is rank 2 ", said[1])

    def test_files_of_another_start_are_not_this_jobs(self):
        with tempfile.TemporaryDirectory() as folder:
            self.written(folder, [0, 1], 2)
            with mock.patch.object(_ranks, "job", lambda environment: "another"):
                said = self.written(folder, [1, 0], 2)
            self.assertEqual(said[1], "")
            self.assertIn("pleat: 2 ranks: ", said[0])

    def test_a_damaged_file_ends_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.written(folder, [0], 2)
            pathlib.Path(folder, "c.json.0").write_bytes(b"\xff{" * 1000)
            self.assertEqual(self.written(folder, [1], 2)[1], "")

    def test_few_files_are_looked_for(self):
        """Some N ln N in a job of N ranks, and not N times N."""
        looked = []
        place = _ranks.of_rank
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(_ranks, "of_rank", lambda *asked: looked.append(asked) or place(*asked)):
            self.written(folder, range(200), 200)
        self.assertLess(len(looked), 200 * 10)


class Plans(unittest.TestCase):
    def save(self, name, rank, ranks, fingerprint, made):
        def write(path):
            made.append(path)
            pathlib.Path(path).write_text("plan " + fingerprint)

        _plans.save(name, 0, 0, fingerprint, write, {"RANK": str(rank), "WORLD_SIZE": str(ranks)})

    def test_ranks_that_ask_for_the_same_share_one(self):
        for name, mark in (("a.plan", "a.plan.equal-%s"), ("a%r.plan", "aequal-%s.plan")):
            with tempfile.TemporaryDirectory() as folder:
                made, path = [], os.path.join(folder, name)
                prints = ["%016x" % (rank // 2) for rank in range(4)]
                for rank in range(4):
                    self.save(path, rank, 4, prints[rank], made)
                self.assertEqual(made, [os.path.join(folder, mark % prints[rank]) for rank in (0, 2)])
                for rank in range(4):
                    ranked = {"RANK": str(rank), "WORLD_SIZE": "4"}
                    own = _plans.read(path, ranked)
                    self.assertEqual(pathlib.Path(own).read_text(), "plan " + prints[rank])
                self.assertEqual(os.stat(own).st_nlink, 3)
                self.assertEqual(len(_plans.of_ranks(path)), 2)  # that are read and proven before the job begins

    def test_ranks_are_told_by_what_was_recorded_at_the_mark(self):
        """It is the same in all of them. The thread that saves finds more recorded, as much as chance has it."""
        program, saved = threading.current_thread(), []

        def fingerprints(failing):
            if threading.current_thread() is not program:
                return {0: "by chance"}
            if failing:
                raise RuntimeError("no host memory")
            return {0: "as all"}

        for ranks, failing in (("2", False), ("2", True), ("1", False)):
            saver = _plans.Saver(mock.Mock(**{"pleat_torch_first_device.return_value": 0}),
                                 lambda _, taken: saved.append(taken[0]), "a.plan", functools.partial(fingerprints, failing))
            with mock.patch.dict(os.environ, WORLD_SIZE=ranks):
                saver.look()
                saver.finish()
        self.assertEqual(saved, ["as all", "by chance", "by chance"])

    def test_a_further_rank_takes_what_all_others_have(self):
        ranked = {"RANK": "9", "WORLD_SIZE": "16"}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a%r.plan")
            self.save(path, 0, 2, "%016x" % 7, [])
            self.save(path, 1, 2, "%016x" % 7, [])
            self.assertEqual(_plans.read(path, ranked), os.path.join(folder, "aequal-%016x.plan" % 7))
            # Where they differ nobody knows which one it would be.
            self.save(path, 2, 3, "%016x" % 8, [])
            self.assertEqual(_plans.read(path, ranked), os.path.join(folder, "a9.plan"))

    def test_each_size_of_a_job_has_plans_of_its_own(self):
        sized = lambda ranks, rank=1: {"RANK": str(rank), "WORLD_SIZE": str(ranks)}  # noqa: E731
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plans", "%w", "%r.plan")
            for ranks in (2, 4):
                for rank in range(ranks):
                    self.save(path, rank, ranks, "%016x" % (10 * ranks + rank), [])
            for ranks in (2, 4):
                own = _plans.read(path, sized(ranks))
                self.assertEqual(own, os.path.join(folder, "plans", str(ranks), "1.plan"))
                self.assertEqual(pathlib.Path(own).read_text(), "plan %016x" % (10 * ranks + 1))
                self.assertFalse(_plans.is_of_another_size(path, sized(ranks)))
            self.assertEqual(len(_plans.of_ranks(path)), 6)
            # None was made for three, which is no reason to end; that one of two is missing is.
            self.assertTrue(_plans.is_of_another_size(path, sized(3)))
            self.assertFalse(_plans.is_of_another_size(path.replace("%w", "3"), sized(3)))
            self.assertTrue(_plans.is_told_later(path, {}))
            # One that all have the same serves a further rank of that size.
            path = os.path.join(folder, "b-%w.plan")
            for rank in (0, 1):
                self.save(path, rank, 8, "%016x" % 5, [])
            self.assertEqual(_plans.read(path, sized(8, 7)), os.path.join(folder, "b-8.plan.equal-%016x" % 5))
            self.assertEqual(_plans.read(path, sized(4, 0)), os.path.join(folder, "b-4.plan"))
            old = os.path.join(folder, "b-8.plan.equal-%016x" % 5)
            os.utime(old, (1, 1))
            for ranks, there in ((4, True), (8, False)):
                _plans.forget_old(path, time.time() - 60, sized(ranks, 0))
                self.assertEqual(os.path.exists(old), there)

    def test_what_an_earlier_start_shared_goes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.plan")
            for rank in (0, 1):
                self.save(path, rank, 2, "%016x" % 1, [])
            old = os.path.join(folder, "a.plan.equal-%016x" % 1)
            os.utime(old, (1, 1))
            other = pathlib.Path(folder, "a.plan.equal-of-mine")
            other.touch()
            os.utime(other, (1, 1))
            self.save(path, 0, 2, "%016x" % 2, [])
            for rank in "10":
                _plans.forget_old(path, time.time() - 60, {"RANK": rank, "WORLD_SIZE": "2"})
                self.assertEqual(os.path.exists(old), rank == "1")
            self.assertTrue(other.exists())
            # Rank 1 has not saved again, and keeps its own.
            self.assertEqual(pathlib.Path(path + ".1").read_text(), "plan %016x" % 1)

    def test_what_an_earlier_run_left_is_written_anew(self):
        with tempfile.TemporaryDirectory() as folder:
            path, made = os.path.join(folder, "a.plan"), []
            old = pathlib.Path(folder, "a.plan.equal-%016x" % 1)
            old.write_text("of another release")
            os.utime(old, (1, 1))
            self.save(path, 0, 2, "%016x" % 1, made)
            self.save(path, 1, 2, "%016x" % 1, made)
            self.assertEqual(made, [str(old)])
            self.assertEqual(pathlib.Path(path + ".1").read_text(), "plan %016x" % 1)

    def test_nothing_is_left_where_it_is_saved_again_or_cannot_be(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.plan")
            for _ in range(3):
                self.save(path, 1, 2, "%016x" % 1, [])
            os.mkdir(path + ".0")
            with self.assertRaises(OSError):
                self.save(path, 0, 2, "%016x" % 1, [])
            self.assertEqual(sorted(os.listdir(folder)), ["a.plan.0", "a.plan.1", "a.plan.equal-%016x" % 1])

    def test_without_links_it_is_a_copy(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(os, "link", side_effect=OSError(1, "none")):
            self.save(os.path.join(folder, "a.plan"), 1, 2, "%016x" % 1, [])
            self.assertEqual(pathlib.Path(folder, "a.plan.1").read_text(), "plan %016x" % 1)

    def test_a_job_of_one_process_shares_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            made = []
            _plans.save(os.path.join(folder, "a.plan"), 1, 0, "1" * 16, made.append, {})
            _plans.save(os.path.join(folder, "a%p.plan"), 0, 0, "1" * 16, made.append, {"RANK": "1", "WORLD_SIZE": "2"})
            self.assertEqual(made, [os.path.join(folder, "a.plan.d1"), os.path.join(folder, "a%d.plan" % os.getpid())])


@unittest.skipUnless(os.environ.get("PLEAT_FAKE_NCCL"), "$PLEAT_FAKE_NCCL names no library in NCCL's place")
class Nccl(unittest.TestCase):
    """Whether libpleat_nccl.so stands before NCCL."""

    def python(self, *lines, **environment):
        done = subprocess.run([sys.executable, "-c", "\n".join(("import ctypes, os, sys, types",
                                                                "from pleat import _nccl", *lines))],
                              env=dict(os.environ, PYTHONPATH=str(ADAPTER), **environment),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_it_stands_where_it_was_loaded_first(self):
        fake = "ctypes.CDLL(os.environ['PLEAT_FAKE_NCCL']%s)"
        stand, ask = "_nccl.stand()", "print(_nccl.stands())"
        for lines, stands in (((stand, fake % "", ask), True), ((stand, fake % ", ctypes.RTLD_GLOBAL", ask), True),
                              ((fake % ", ctypes.RTLD_GLOBAL", stand, ask), False), ((fake % "", ask), False),
                              # NCCL is a part of torch.
                              ((stand, ask), False),
                              # Too late.
                              (("sys.modules['torch'] = torch = types.ModuleType('torch')", "torch._C = 1", stand,
                                fake % "", ask), False)):
            self.assertEqual(self.python(*lines).stdout, "%s\n" % stands, lines)
        self.assertEqual(self.python(stand, fake % "", ask, PLEAT_NCCL="/no/such").stdout, "False\n")

    # Tells what was told: the listener's six functions, of which the first says what is mapped anew.
    LISTENS = """
told, window = [], (ctypes.c_char * 4096)()
def listener(name, *types):
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(lambda *given: told.append(name) or name == "registers" and given[0] == ctypes.addressof(window))
functions = [listener(name, *types) for name, types in (
    ("registers", (ctypes.c_void_p, ctypes.c_size_t)), ("hold", (ctypes.c_void_p,)), ("let go", (ctypes.c_void_p,)),
    ("talks", (ctypes.c_void_p,)), ("starts", ()), ("started", ()))]
table = (ctypes.c_void_p * 6)(*(ctypes.cast(one, ctypes.c_void_p) for one in functions))
ctypes.CDLL(None).pleat_nccl_listen(table)
class UniqueId(ctypes.Structure): _fields_ = [("internal", ctypes.c_byte * 128)]
def use(nccl):
    comm, handle, stays = ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_char * 4096)()
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 2, UniqueId(), 0) == 0
    for buffer in (window, stays):
        assert nccl.ncclCommRegister(comm, buffer, ctypes.c_size_t(4096), ctypes.byref(handle)) == 0
        told.append(bool(handle))
    assert nccl["ncclCommDeregister"](comm, handle) == 0
    said = list(told)
    told.clear()
    return said
"""

    def test_a_program_that_loads_nccl_by_ctypes_is_seen(self):
        """As vLLM does, before torch brings NCCL or after; not a second NCCL, whose communicators are its own."""
        with tempfile.TemporaryDirectory() as folder:
            second = pathlib.Path(folder, "libnccl.so.2")
            shutil.copy(os.environ["PLEAT_FAKE_NCCL"], second)
            done = self.python("_nccl.stand()", self.LISTENS, "print(use(ctypes.CDLL(os.environ['PLEAT_FAKE_NCCL'])))",
                               "print(use(ctypes.CDLL(%r)))" % str(second),
                               "print(hasattr(ctypes.CDLL(%r), 'ncclNoSuch'))" % str(second))
        self.assertEqual(done.stdout.splitlines(), [
            "['starts', 'started', 'registers', False, 'registers', 'hold', True, 'let go']", "[True, True]", "False"])

    def test_it_stands_when_torch_is_imported(self):
        """Under `pleat run` and with PLEAT=1: torch brings NCCL."""
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text("import ctypes, os\nctypes.CDLL(os.environ['PLEAT_FAKE_NCCL'])\n"
                                                        "class version: cuda = None\n_C = 1\n__version__ = '9'\n")
            under_run = run.environment(run.parse(["--quiet", "--", "true"]), dict(os.environ, PYTHONPATH=folder))
            for made, first in ((under_run, ""), (dict(os.environ, PYTHONPATH=folder, PLEAT="1"),
                                                  "sys.path.insert(0, %r); import pleat._environment\n" % str(ADAPTER))):
                done = subprocess.run([sys.executable, "-c", "import sys\n%simport torch\nfrom pleat import _nccl\n"
                                       "print(_nccl.stands())" % first], env=made, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.stdout, "True\n", done.stderr)

    def test_all_memory_is_registered_only_where_it_stands(self):
        hook = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        settle = ("class Library: pleat_torch_register_all = staticmethod(lambda on: print('all', on))",
                  "_nccl.settle(Library)", "print(%r in os.environ)" % hook)
        fake = "ctypes.CDLL(os.environ['PLEAT_FAKE_NCCL'])"
        done = self.python("_nccl.stand()", fake, *settle, **{hook: "1"})
        self.assertEqual((done.stdout, done.stderr), ("all 1\nTrue\n", ""))
        done = self.python(*settle, **{hook: "1"})
        self.assertEqual(done.stdout, "False\n")
        self.assertIn("pleat: %s was unset" % hook, done.stderr)
        self.assertEqual(self.python(*settle, **{hook: "0"}).stdout, "True\n")


class Launched(unittest.TestCase):
    @unittest.skipUnless(os.environ.get("PLEAT_TORCH_PYTHON"), "$PLEAT_TORCH_PYTHON names no Python that has torch")
    def test_torchruns_workers_are_heard(self):
        python = os.environ["PLEAT_TORCH_PYTHON"]
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "train.py")
            program.write_text("import torch.distributed as dist\n"
                               "dist.init_process_group('gloo')\n" + RANK + "dist.barrier()\n")
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(program)]
            begun = subprocess.run([python, "-m", "pleat.run", "--", python, *launch], cwd=str(ADAPTER),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
            self.assertEqual(begun.returncode, 0, begun.stderr)
            self.assertIn("pleat: 3 ranks: ", begun.stderr)
            self.assertIn("the worst is rank 2 ", begun.stderr)


if __name__ == "__main__":
    suite.main()
