"""`pleat estimate`: what is recorded, what the command says, and how it ends; no torch is needed. $PLEAT_COMMAND names
the command, $PLEAT_NO_GPU the CUDA runtime without a GPU."""

import contextlib
import gc
import io
import json
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from here import ADAPTER  # first: it knows where the package is
import started  # the program beside this one
import suite
from pleat import _errors, _fake, _progress, _recording, estimate

MIB = 1 << 20

# Writes each signal that it has had, half a second after the first.
COUNTS = """
import signal, sys, time
had = []
for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
    signal.signal(number, lambda number, frame: had.append(number))
print("ready", flush=True)
end = time.monotonic() + 10
while not had and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.5)
print(*map(int, had))
"""


def run(*arguments, program, python=(sys.executable,)):
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "program.py")
        script.write_text(program)
        return run_words(*python, str(script), options=arguments)


def run_started(*arguments, program):
    """The same in a process that has imported torch already. That a program's own import of torch begins the estimate is held
    by the tests that use run()."""
    return run(*arguments, program=program, python=started.python())


def run_words(*words, options=(), **named):
    return subprocess.run([sys.executable, "-m", "pleat.estimate", *options, "--", *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=dict(os.environ, PYTHONPATH=str(ADAPTER)), **named)


def begin(*words, stderr=None, start_new_session=False, **variables):
    return subprocess.Popen([sys.executable, "-m", "pleat.estimate", "--", *words], stdout=subprocess.PIPE, stderr=stderr,
                            text=True, start_new_session=start_new_session,
                            env=dict(os.environ, PYTHONPATH=str(ADAPTER), **variables))


class Storage:
    def __init__(self, key, bytes):
        self._cdata, self.nbytes = key, lambda: bytes


class Recording(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "x.pickle")
        self.recorder = _fake.Recorder(self.path)

    def finished(self):
        """The events of a recording that is at its end."""
        self.recorder.finish()
        with open(self.path, "rb") as made:
            return pickle.load(made)["device_traces"][0]

    def record(self, count):
        """So many storages of 512 bytes that come and go, three events each."""
        for key in range(count):
            self.recorder.seen(Storage(key, 512))

    def test_a_storage_of_another_size_is_another_allocation(self):
        recorder = self.recorder
        storage, of_host = Storage(7, 4096), Storage(8, 512)
        recorder.seen(storage)
        for bytes in (0, 8192, 1024):
            storage.nbytes = lambda bytes=bytes: bytes
            recorder.resized(storage)
            recorder.resized(of_host)
            self.assertEqual(recorder.live.value, bytes)
        del storage
        self.assertEqual((recorder.live.value, recorder.statistics.bytes["all"].peak), (0, 8192 + 1024))

    def test_storages_come_and_go(self):
        recorder = self.recorder
        kept, gone = Storage(1, 1000), Storage(2, 512)
        for storage in (kept, gone, kept, Storage(3, 0)):
            recorder.seen(storage)
        del gone, storage
        recorder.step()
        recorder.seen(Storage(2, 100))
        self.assertEqual((recorder.live.value, recorder.statistics.bytes["all"].peak), (1024, 1536))
        events = self.finished()
        self.assertEqual([(event["action"], event["size"], event["user_metadata"]) for event in events],
                         [("alloc", 1000, "iter=0"), ("alloc", 512, "iter=0"), ("free_requested", 512, "iter=0"),
                          ("free_completed", 512, "iter=0"), ("alloc", 100, "iter=1"),
                          ("free_requested", 100, "iter=1"), ("free_completed", 100, "iter=1")])
        self.assertEqual([event["time_us"] for event in events], [30, 60, 60, 60, 90, 90, 90])
        addresses = [event["addr"] for event in events if event["action"] == "alloc"]
        self.assertEqual(len(set(addresses)), 3)

    def test_threads_may_go_on_after_the_recording_is_written(self):
        recorder = self.recorder
        kept, ending = Storage(1, 512), Storage(2, 512)
        recorder.seen(kept)
        recorder.seen(ending)
        end = recorder.ends[2].peek()
        recorder.finish()
        recorder.seen(kept)
        end[1](*end[2])  # as a thread calls it that waited for the lock while the recording was written
        self.assertEqual(recorder.live.value, 1024)

    def test_events_are_on_the_disk_and_not_in_memory(self):
        count = _recording.BATCH + 1
        self.record(count)
        self.assertLess(len(self.recorder.recording.batch), _recording.BATCH)
        self.assertFalse(os.path.exists(self.path))  # a part of one is none
        self.assertEqual([event["action"] for event in self.finished()],
                         ["alloc", "free_requested", "free_completed"] * count)
        told = estimate.imported(self.path)
        self.assertEqual((told["requests"], told["frees"], told["peak_live_bytes"]), (count, count, 512))

    def test_a_recording_is_full_at_some_time(self):
        said = io.StringIO()
        with mock.patch.object(_recording, "EVENTS_MOST", 7), contextlib.redirect_stderr(said):
            self.record(5)
            self.assertEqual(len(self.finished()), 7)
            self.assertEqual(self.recorder.statistics.bytes["all"].allocated, 5 * 512)
        self.assertEqual(said.getvalue(), "pleat estimate: 7 events of iterations 1 to 1 are recorded, which is the most: "
                         "what comes later is not among the figures\n")

    def test_a_recording_that_cannot_be_written_ends_the_program(self):
        self.recorder = _fake.Recorder(os.path.join(self.path, "x.pickle"))
        with self.assertRaisesRegex(_errors.Refusal, "the recording cannot be written: .*No such file"):
            self.record(_recording.BATCH)
        with self.assertRaises(FileNotFoundError):
            self.recorder.finish()

    def test_a_disk_that_is_full_from_the_start_ends_the_program_so_too(self):
        full = OSError(28, "No space left on device")
        self.recorder = _fake.Recorder(self.path, begun=mock.Mock(side_effect=full))
        with self.assertRaisesRegex(_errors.Refusal, "the recording cannot be written: .*No space left"):
            self.record(1)
        self.recorder = _fake.Recorder(self.path, begun=mock.Mock(side_effect=(None, full)))
        self.record(1)
        self.recorder.step()
        with self.assertRaisesRegex(_errors.Refusal, "the recording cannot be written: .*No space left"):
            self.record(1)

    def test_a_program_may_close_what_it_does_not_know(self):
        child = os.fork()
        if not child:
            try:
                self.record(_recording.BATCH)
                os.closerange(3, 256)
                its = [open(os.devnull) for _ in range(20)]
                self.record(_recording.BATCH)
                os._exit(len(self.finished()) != 6 * _recording.BATCH or len(its) != 20)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_a_forked_child_writes_nothing(self):
        self.record(_recording.BATCH)
        with self.recorder.lock:
            child = os.fork()
            if not child:
                self.recorder.leave()
                self.record(_recording.BATCH)
                os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(self.finished()), 3 * _recording.BATCH)

    def test_no_garbage_is_collected_while_the_lock_is_held(self):
        lock = _fake.Lock()
        for collects in (True, False):
            (gc.enable if collects else gc.disable)()
            try:
                with lock:
                    with lock:
                        self.assertFalse(gc.isenabled())
                    self.assertFalse(gc.isenabled())
                self.assertEqual(gc.isenabled(), collects)
            finally:
                gc.enable()

    def test_workspaces_are_torchs(self):
        for asked, capability, bytes in (("", (9, 0), 32 * MIB), ("", (8, 0), 8 * MIB + 128 * 1024),
                                         (":4096:2:16:8", (9, 0), 8 * MIB + 128 * 1024), (":16:8", (8, 6), 128 * 1024)):
            with mock.patch.dict(os.environ, CUBLAS_WORKSPACE_CONFIG=asked):
                self.assertEqual(_fake.workspace_bytes(capability), bytes, asked)


class Command(unittest.TestCase):
    def test_bad_use_is_refused(self):
        for arguments, code, text in (
                ([], 2, "no program to run"), (["--device-memory", "much", "--", "true"], 2, "or one of b200 h200"),
                (["-d", "80", "--", "true"], 2, "--device-memory is a size from 2.000 MiB to 65536.000 TiB"),
                (["--capability", "new", "--", "true"], 2, "'new' is none: write 9.0"),
                (["-o", "/no/such/x", "--", "true"], 3, "there is no folder '/no/such'"),
                (["-o", "/", "--", "true"], 3, "'/' is a folder, not a file"),
                (["-o", "x/", "--", "true"], 3, "there is no folder '%s/x'" % os.getcwd()),
                *((["-o", one, "--", "true"], 2, "--output is a file, not '%s'" % one) for one in ("-", "", "/dev/stdout", "/dev/fd/1")),
                (["--", "no-such-program"], 127, "there is no program 'no-such-program'")):
            with mock.patch("sys.stderr") as said, self.assertRaises(SystemExit) as ended:
                estimate.main(arguments)
            self.assertEqual(ended.exception.code, code, arguments)
            self.assertIn(text, "".join(call.args[0] for call in said.write.call_args_list))

    def test_a_named_gpu_has_its_capability(self):
        for arguments, capability in ((["-d", "RTX4090"], "8.9"), (["-d", "80GiB"], "9.0"), ([], "9.0"),
                                      (["-d", "a10", "--capability", "9.0"], "9.0")):
            self.assertEqual(estimate.parse([*arguments, "--", "true"]).capability, capability)
        with self.assertRaises(ZeroDivisionError):
            estimate.device_bytes("none", lambda wrong: self.names(wrong) and 1 / 0)

    def names(self, wrong):
        """Those that the command knows are those that have a capability."""
        self.assertEqual(wrong.partition("one of ")[2].partition(",")[0].split(), list(estimate.CAPABILITIES))
        return True

    def test_the_program_is_not_overwritten(self):
        with tempfile.TemporaryDirectory() as folder:
            program, other = pathlib.Path(folder, "train.py"), pathlib.Path(folder, "old.trace")
            program.write_text("pass")
            other.write_text("an earlier one")
            with mock.patch("sys.stderr") as said, self.assertRaises(SystemExit) as ended:
                estimate.parse(["-o", str(program), "--", "python3", str(program)])
            self.assertEqual(ended.exception.code, 3)
            self.assertIn("would be overwritten", "".join(call.args[0] for call in said.write.call_args_list))
            self.assertEqual(estimate.parse(["-o", str(other), "--", "python3", str(program)]).output, str(other))

    def test_a_device_is_a_size_or_a_name(self):
        for given, bytes in ((["-d", "H200"], 143770 * MIB), (["--device-memory", "1.5GiB"], 1536 * MIB),
                             ([], 80 << 30)):
            self.assertEqual(estimate.parse([*given, "--", "true"]).bytes, bytes, given)

    def test_a_device_that_cannot_be_asked_about_is_no_bad_use(self):
        def refused():
            with mock.patch("sys.stderr") as said, self.assertRaises(SystemExit) as ended:
                estimate.main(["--", "true"])
            return ended.exception.code, "".join(call.args[0] for call in said.write.call_args_list)

        with mock.patch("tempfile.NamedTemporaryFile", side_effect=OSError(28, "No space left on device")):
            code, said = refused()
            self.assertEqual(code, 5)
            self.assertTrue(said.startswith("pleat estimate: error: what the GPU has cannot be asked: "), said)
            self.assertIn("No space left on device", said)
        with tempfile.TemporaryDirectory() as folder:
            command = pathlib.Path(folder, "pleat")
            for text, told in (("#!/no/such/interpreter\n", "cannot be asked: [Errno 2]"),
                               ("#!/bin/sh\necho 'pleat import: it is broken' >&2; exit 3\n", "error: it is broken\n")):
                command.write_text(text)
                command.chmod(0o755)
                with mock.patch.dict(os.environ, PLEAT_COMMAND=str(command)):
                    code, said = refused()
                self.assertEqual(code, 5)
                self.assertIn(told, said)
                self.assertNotIn("usage", said)

    def test_what_is_refused_where_there_is_enough_fits_nowhere(self):
        """It once was said to take what it had until then."""
        none = dict.fromkeys(estimate.ALLOCATORS)
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "t.csv")
            for rows, device in (("0,0,1,%d\n" % (2 << 40), 80 << 30), ("0,0,1,%d\n1,2,3,%d\n" % (MIB, 2 << 40), 80 << 30)):
                table.write_text("id,lower,upper,size\n" + rows)
                self.assertEqual(estimate.measured(str(table), device, 0), (none, dict.fromkeys(none, False)))
            # What is live is said to be too much before a replay counts pages of it.
            table.write_text("id,lower,upper,size\n0,0,1,%d\n1,0,1,%d\n" % (1 << 40, 1 << 40))
            options = estimate.parser().parse_args(["-d", "h200", "--", "true"])
            options.bytes = 80 << 30
            with mock.patch("sys.stdout", new_callable=io.StringIO) as said:
                estimate.tell(options, [str(table)], 0, False)
                options.json = True
                estimate.tell(options, [str(table)], 0, False)
            told = said.getvalue().splitlines()
            self.assertEqual(told[1:3], ["pleat estimate: " + "; ".join(
                name + " would take more than 1 TiB" for name in estimate.ALLOCATORS.values()),
                "pleat estimate: it does not fit on one h200, not under Pleat, PyTorch's native allocator or "
                "expandable segments"])
            figures = json.loads(told[-1])
            self.assertEqual([figures[policy + "_physical_bytes"] for policy in none], [None] * 3)
            # A GPU that has more than that is asked about itself.
            table.write_text("id,lower,upper,size\n0,0,1,%d\n1,0,1,%d\n" % (1 << 40, 1 << 39))
            takes, served = estimate.measured(str(table), 2 << 40, 3 << 39)
            self.assertTrue(all(served.values()), served)
            self.assertTrue(all(bytes >= 3 << 39 for bytes in takes.values()), takes)
        self.assertEqual(estimate.amount(None, 2 << 40), "more than 2 TiB")
        self.assertEqual(estimate.amount(3 << 29, 80 << 30), "1.500 GiB")

    def test_figures_are_told_whether_the_trace_could_be_written_or_not(self):
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write(estimate.TABLE)
            table.flush()
            options = estimate.parse(["-o", "/dev/full", "--", "true"])
            for options.json, first in ((True, '{"processes": 1, '), (False, "pleat estimate: 1 request; ")):
                with mock.patch("sys.stdout", new_callable=io.StringIO) as said, self.assertRaises(SystemExit) as ended, \
                        mock.patch("sys.stderr", new_callable=io.StringIO) as refused:
                    estimate.tell(options, [table.name], 0, False)
                self.assertEqual((ended.exception.code, refused.getvalue()), (3, "pleat estimate: error: the trace could not be "
                                                                              "written: '/dev/full': cannot be written: No space left on device\n"))
                self.assertTrue(said.getvalue().startswith(first) and "wrote" not in said.getvalue(), said.getvalue())
            # What a shell has opened (>(gzip), say) is written into.
            pipe, end = os.pipe()
            os.set_inheritable(end, True)
            options.output = "/dev/fd/%d" % end
            with mock.patch("sys.stdout"), open(pipe, "rb") as written:
                estimate.tell(options, [table.name], 0, False)
                os.close(end)
                self.assertGreater(len(written.read()), 0)

    def test_the_verdict_names_allocators(self):
        for served, text in (((True, True, True), "it fits on one h200 under Pleat, PyTorch's native allocator and "
                              "expandable segments"),
                             ((True, False, True), "it fits on one h200 under Pleat and expandable segments, not "
                              "under PyTorch's native allocator"),
                             ((True, False, False), "it fits on one h200 under Pleat, not under PyTorch's native "
                              "allocator and expandable segments"),
                             ((False,) * 3, "it does not fit on one h200, not under Pleat, PyTorch's native allocator "
                              "or expandable segments")):
            self.assertEqual(estimate.verdict({"fits": dict(zip(estimate.ALLOCATORS, served))}, "h200"), text)
        self.assertTrue(estimate.verdict({"fits": dict.fromkeys(estimate.ALLOCATORS, True)}, "80GiB").startswith(
            "it fits on a GPU of 80GiB under "))

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_program_that_fails_or_takes_nothing_is_told(self):
        failed = run(program="import sys; sys.exit(7)")
        self.assertEqual((failed.returncode, failed.stderr), (7, "pleat estimate: error: the program ended with 7\n"))
        nothing = run(program="print('hello')")
        self.assertEqual((nothing.returncode, nothing.stdout), (1, "hello\n"))
        self.assertIn("nothing was allocated on a GPU", nothing.stderr)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_an_installation_may_have_spaces_in_its_path(self):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder, "my programs:new")
            place.mkdir()
            library = shutil.copy(os.environ["PLEAT_NO_GPU"], place)
            nothing = "pleat estimate: error: nothing was allocated on a GPU: does the program use the device 'cuda'?\n"
            for temporary, code, said in ((folder, 1, nothing), (str(place), 5, "TMPDIR\n")):
                with mock.patch.dict(os.environ, PLEAT_NO_GPU=library, TMPDIR=temporary):
                    done = run_words("sh", "-c", "test -e $LD_PRELOAD")
                self.assertEqual((done.returncode, done.stderr[-len(said):]), (code, said), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)  # the system's loader says nothing
            self.assertEqual(os.listdir(folder), [place.name])

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_python_that_does_not_load_it_is_told_of(self):
        done = run_words(sys.executable, "-I", "-c", "pass")
        self.assertEqual((done.returncode, done.stderr.splitlines()[0]), (
            1, "pleat estimate: Pleat does not serve this program: under -I its Python does not load it; leave -I out"))

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_one_that_a_signal_ended_is_told_as_a_shell_does(self):
        for name, code in (("INT", -signal.SIGINT), ("SEGV", 139), ("KILL", 137)):
            done = run_words("sh", "-c", "kill -%s $$" % name)
            self.assertEqual((done.returncode, done.stderr),
                             (code, "pleat estimate: error: the program was ended by the signal SIG%s\n" % name))

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_the_program_has_the_signals_that_python_ignores(self):
        done = run_words("sh", "-c", "kill -PIPE $$")
        self.assertEqual(done.returncode, 141)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_program_that_takes_long_is_seen_on_a_terminal(self):
        """Here $PLEAT_ESTIMATE is written as by one that has torch."""
        words = ["sh", "-c", "printf 2 > $PLEAT_ESTIMATE/1.begun; sleep 6.5; rm $PLEAT_ESTIMATE/*"]
        primary, terminal = os.openpty()
        code = "import sys; from pleat import estimate; estimate.main(sys.argv[1:])"
        with subprocess.Popen([sys.executable, "-c", code, "--", *words], stdout=subprocess.PIPE, stderr=terminal,
                              env=dict(os.environ, PYTHONPATH=str(ADAPTER))) as begun:
            quiet = run_words(*words)
            self.assertEqual(begun.wait(20), 1)
        os.close(terminal)
        seen = os.read(primary, 4096).decode().splitlines()
        os.close(primary)
        self.assertRegex(seen[0], "^estimate   iteration 3       [5-9] s$")
        self.assertEqual(seen[1:], quiet.stderr.splitlines())

    def test_lines_beside_a_program_come_at_doubling_times(self):
        waited = []

        class Event:
            set = staticmethod(lambda: None)

            def wait(self, seconds):
                waited.append(seconds)
                return len(waited) > 5

        class Thread:
            def __init__(self, target, daemon):
                self.start = target

            join = staticmethod(lambda: None)

        with mock.patch("sys.stderr", new_callable=io.StringIO) as said, mock.patch("time.monotonic", lambda: 7), \
                mock.patch.object(_progress, "threading", types.SimpleNamespace(Event=Event, Thread=Thread)):
            said.isatty = lambda: True
            with _progress.shown("estimate", lambda: "the program"):
                pass
        self.assertEqual([line.split()[-2] for line in said.getvalue().splitlines()], ["5", "10", "20", "40", "80"])
        self.assertEqual(waited, [5, 10, 20, 40, 80, 160])

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_program_has_a_signal_once(self):
        """Also where it was sent to the command alone, or to that first and then to all of its group, as `timeout` does.
        The command ends by SIGINT, or a shell's loop would go on."""
        def alone(begun, number):
            begun.send_signal(number)

        def group(begun, number):
            os.killpg(begun.pid, number)

        def first_alone(begun, number):
            alone(begun, number)
            group(begun, number)

        for send in alone, group, first_alone:
            for number, code in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
                with begin(sys.executable, "-c", COUNTS, stderr=subprocess.PIPE, start_new_session=True) as begun:
                    self.assertEqual(begun.stdout.readline(), "ready\n")
                    send(begun, number)
                    self.assertEqual(begun.communicate(timeout=20)[0], "%d\n" % number, send)
                    self.assertEqual(begun.returncode, code, send)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_terminal_that_goes_leaves_nothing_and_what_nohup_began_goes_on(self):
        waits = "import sys; print('ready', flush=True); sys.stdin.readline(); print('on')"
        for nohup in (), ("nohup",):
            with tempfile.TemporaryDirectory() as folder:
                begun = subprocess.Popen([*nohup, sys.executable, "-m", "pleat.estimate", "--", sys.executable, "-c", waits],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                         start_new_session=True,
                                         env=dict(os.environ, PYTHONPATH=str(ADAPTER), TMPDIR=folder))
                self.assertEqual(begun.stdout.readline(), "ready\n")
                os.killpg(begun.pid, signal.SIGHUP)
                said, _ = begun.communicate("\n", timeout=20)
                # Without a tensor on the GPU it ends with 1.
                self.assertEqual((said, begun.returncode), ("on\n", 1) if nohup else ("", 129))
                self.assertEqual(os.listdir(folder), [])

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_a_program_in_a_group_of_its_own_has_the_groups_signal(self):
        with begin("setsid", sys.executable, "-c", COUNTS, stderr=subprocess.PIPE, start_new_session=True) as begun:
            self.assertEqual(begun.stdout.readline(), "ready\n")
            os.killpg(begun.pid, signal.SIGINT)
            self.assertEqual(begun.communicate(timeout=20)[0], "%d\n" % signal.SIGINT)
            self.assertEqual(begun.returncode, -signal.SIGINT)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_one_that_was_stopped_ends_by_a_signal_to_it_alone(self):
        with begin(sys.executable, "-c", COUNTS, stderr=subprocess.PIPE, start_new_session=True) as begun:
            self.assertEqual(begun.stdout.readline(), "ready\n")
            os.killpg(begun.pid, signal.SIGSTOP)
            begun.send_signal(signal.SIGCONT)
            begun.terminate()
            self.assertEqual(begun.wait(20), 143)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_the_first_process_of_a_container_ends_as_a_shell_says(self):
        apart = ["unshare", "-Urpf", "--mount-proc"]
        if subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no process may have a namespace of its own here")
        done = subprocess.run([*apart, sys.executable, "-m", "pleat.estimate", "--", "sh", "-c", "kill -INT $$"],
                              check=False, stderr=subprocess.PIPE,
                              env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
        self.assertEqual(done.returncode, 128 + signal.SIGINT, done.stderr)

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_what_cannot_be_executed_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "program")
            path.write_text("none that a system knows")
            path.chmod(0o755)
            done = run_words(str(path))
        self.assertEqual((done.returncode, done.stderr),
                         (126, "pleat estimate: error: %s: Exec format error\n" % path))

    @unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
    def test_one_that_is_terminated_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            begun = begin("sh", "-c", "echo $$; exec sleep 60", TMPDIR=folder)
            program = int(begun.stdout.readline())
            self.assertEqual(len(os.listdir(folder)), 1)
            begun.terminate()
            self.assertEqual(begun.wait(20), 143)
            begun.stdout.close()
            self.assertEqual(os.listdir(folder), [])
            self.assertFalse(os.path.exists("/proc/%d" % program))


if __name__ == "__main__":
    suite.main()
