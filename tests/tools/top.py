"""Tests of `pleat top` on a job that runs, then is killed: top.py PLEAT SNAPSHOT."""

import fcntl
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PLEAT, SNAPSHOT = sys.argv[1:3]
PEAK = 10114126848
LATEST = 60  # seconds after which a job that should run does not


class Top(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": self.folder.name, "TERM": "xterm"}
        self.environment.pop("PLEAT_CONF", None)
        self.job = None

    def tearDown(self):
        if self.job is not None:
            self.job.kill()
            self.job.wait()
        self.folder.cleanup()

    def top(self, *arguments, status=0):
        ran = subprocess.run([PLEAT, "top", *arguments], capture_output=True, text=True,
                             env=self.environment, timeout=LATEST)
        self.assertEqual(ran.returncode, status, ran.stderr)
        return ran.stdout if status == 0 else ran.stderr

    def start(self, *arguments):
        """A job that repeats until it is killed; waits until it is past its first iterations."""
        self.job = subprocess.Popen(
            [PLEAT, "replay", SNAPSHOT, "--repeat", "1000000", *arguments],
            stdout=subprocess.DEVNULL, env={**self.environment, "PLEAT_CONF": "log:auto,log_ms:2"})
        begun = time.monotonic()
        while time.monotonic() - begun < LATEST:
            found = json.loads(self.top("--json"))["runtimes"]
            if found and found[0].get("iterations", 0) > 4:
                return found[0]
            time.sleep(0.01)
        self.fail("the job does not run")

    def test_a_folder_that_cannot_be_looked_at_is_not_an_empty_one(self):
        """A file in its place, which is refused to root as well."""
        folder = os.path.join(self.folder.name, "pleat")
        open(folder, "w").close()
        for arguments in ((), ("--json",), ("1",)):
            self.assertIn("'%s' cannot be looked at: Not a directory" % folder, self.top(*arguments, status=3))

    def test_a_job_from_its_start_to_its_end(self):
        self.assertIn("Nothing runs", self.top())
        # Not on a terminal: one frame, or as many as are asked for.
        self.assertEqual(self.top(), self.top("--count", "1"))
        self.assertEqual(self.top("--count", "3", "--interval", "0.1").count("Nothing runs"), 3)
        self.assertEqual(json.loads(self.top("--json")), {"runtimes": []})
        seen = self.start("--policy", "native")
        self.assertEqual((seen["pid"], seen["status"], seen["policy"]),
                         (self.job.pid, "running", "native"))
        self.assertEqual(seen["peak_live_bytes"], PEAK)
        self.assertGreater(seen["peak_physical_bytes"], seen["peak_live_bytes"])
        self.assertLessEqual(seen["live_bytes"], seen["physical_bytes"])
        self.assertIn(SNAPSHOT, seen["command"])
        line = self.top().splitlines()
        self.assertEqual(len(line), 2)
        self.assertTrue(line[1].startswith(str(self.job.pid)), line[1])
        self.assertIn(" pleat replay ", line[1])
        text = self.top(str(self.job.pid))
        for part in ("running", "efficiency 90.3", "9.420 GiB", "% of requests as planned", "driver calls"):
            self.assertIn(part, text)
        self.job.send_signal(signal.SIGKILL)
        self.job.wait()
        self.assertIn("Nothing runs", self.top())
        self.assertIn("gone after", self.top(str(self.job.pid)))
        after = json.loads(self.top(seen["log"], "--json"))["runtimes"][0]
        self.assertEqual(after["status"], "gone")
        self.assertGreaterEqual(after["iterations"], seen["iterations"])
        self.assertEqual(after["peak_live_bytes"], PEAK)

    def test_figures_say_of_which_iterations_they_are(self):
        """The mean has the calls of the first iteration, the last one has none; the fourth began and is no whole one."""
        log, plan = (os.path.join(self.folder.name, name) for name in ("run.log", "job.plan"))
        subprocess.run([PLEAT, "plan", SNAPSHOT, "--no-replay", "-o", plan], check=True, stdout=subprocess.DEVNULL)
        done = subprocess.run([PLEAT, "replay", SNAPSHOT, "--json", "--plan", plan], check=True, stdout=subprocess.PIPE,
                              env={**self.environment, "PLEAT_CONF": f"log:{log}"})
        told = json.loads(self.top(log, "--json"))["runtimes"][0]
        self.assertEqual((json.loads(done.stdout)["iterations"], told["iterations"]), (3, 4))
        self.assertGreater(told["iteration_driver_calls"], 1)
        self.assertEqual((told["rated_from"], told["rated_to"]), (1, 3))
        text = self.top(log)
        self.assertRegex(text, r"(?m)^state \w+, iteration 4 has begun$")
        self.assertRegex(text, rf"(?m)^mean of iterations 1 to 3: \S+ s, {told['iteration_driver_calls']:.4g} driver calls, "
                               r"100\.0 % of requests as planned$")
        self.assertRegex(text, r"(?m)^ +since it began  in iteration 3$")
        self.assertRegex(text, rf"(?m)^driver calls +{told['driver_calls']} +0$")

    def test_runtimes_of_a_process_come_in_order(self):
        """By device and number; a name's digits are one."""
        folder = os.path.join(self.folder.name, "pleat")
        log = os.path.join(self.folder.name, "run.log")
        subprocess.run([PLEAT, "replay", SNAPSHOT, "--policy", "native"], check=True, stdout=subprocess.DEVNULL,
                       env={**self.environment, "PLEAT_CONF": f"log:{log}"})
        os.makedirs(folder, mode=0o700, exist_ok=True)
        names = ["1-0.log", "1-0-2.log", "1-0-10.log", "1-1.log", "1-2.log", "1-10.log"]
        for name in reversed(names):
            shutil.copy(log, os.path.join(folder, name))
        told = json.loads(self.top("1", "--json"))["runtimes"]
        self.assertEqual([os.path.basename(runtime["log"]) for runtime in told], names)

    def test_a_pipe_gets_plain_frames(self):
        self.start("--policy", "native")
        text = self.top("--count", "3", "--interval", "0.1")
        self.assertEqual(text.count("process"), 3)
        self.assertNotIn("\033", text)
        frames = self.top("--count", "2", "--interval", "0.1", "--json").splitlines()
        self.assertEqual([len(json.loads(f)["runtimes"]) for f in frames], [1, 1])

    def read(self, end, until):
        seen, begun = b"", time.monotonic()
        while until not in seen and time.monotonic() - begun < LATEST:
            if select.select([end], [], [], 0.1)[0]:
                try:
                    got = os.read(end, 65536)
                except OSError:  # the other end is closed
                    break
                seen += got
        self.assertIn(until, seen)
        return seen

    def test_a_terminal_is_redrawn_to_its_size_and_left_as_it_was(self):
        self.start("--policy", "native")
        end, other = pty.openpty()
        before = termios.tcgetattr(other)
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        shown = subprocess.Popen([PLEAT, "top", str(self.job.pid), "--interval", "3600"],
                                 stdin=other, stdout=other, stderr=other, env=self.environment)
        frame = self.read(end, b"\033[J")
        lines = frame.split(b"\033[H")[1].split(b"\033[K\r")
        self.assertLessEqual(len(lines), 12)
        self.assertLessEqual(max(len(l.strip()) for l in lines[:-1]), 60)
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        shown.send_signal(signal.SIGWINCH)
        frame = self.read(end, b"refused")
        self.assertIn(b" seconds: # live", frame)
        os.write(end, b"q")
        self.read(end, b"\033[?1049l")
        self.assertEqual(shown.wait(LATEST), 0)
        self.assertEqual(termios.tcgetattr(other), before)
        os.close(end)
        os.close(other)

    def test_counted_frames_stay_on_a_terminal(self):
        end, other = pty.openpty()
        subprocess.run([PLEAT, "top", "--count", "2", "--interval", "0.1"], check=True, stdin=other, stdout=other,
                       stderr=other, env=self.environment)
        os.close(other)
        shown = self.read(end, b"\r\n\r\nNothing runs")
        os.close(end)
        self.assertNotIn(b"\033", shown)

    def test_a_command_line_cannot_drive_the_terminal(self):
        name = os.path.join(self.folder.name, "\033[2Jjob.pickle.gz")
        os.symlink(os.path.abspath(SNAPSHOT), name)
        log = os.path.join(self.folder.name, "own.log")
        subprocess.run([PLEAT, "replay", name, "--policy", "native"], check=True,
                       stdout=subprocess.DEVNULL,
                       env={**self.environment, "PLEAT_CONF": f"log:{log}"})
        text = self.top(log)
        self.assertIn(".[2Jjob.pickle.gz", text)
        self.assertNotIn("\033", text)

    def test_bad_use(self):
        self.assertIn("no log of process 1", self.top("1", status=3))
        self.assertIn(SNAPSHOT, self.top(SNAPSHOT, status=3))
        self.assertIn("/nowhere", self.top("/nowhere", status=3))
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        for name in (pipe, "/dev/zero"):
            self.assertIn("a log is a regular file", self.top(name, status=3))
        self.top("--interval", "0", status=2)
        self.top("1", "2", status=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
