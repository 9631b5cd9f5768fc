"""Tests of `pleat tenants` on jobs that share a device: tenants.py PLEAT SNAPSHOT."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PLEAT, SNAPSHOT = sys.argv[1:3]
LATEST = 60  # seconds after which what is waited for does not come


class Tenants(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        self.environment = {**os.environ, "PLEAT_TENANTS_DIR": self.folder.name}
        self.environment.pop("PLEAT_CONF", None)
        self.jobs = []

    def tearDown(self):
        for job in self.jobs:
            job.kill()
            job.wait()
        self.folder.cleanup()

    def tenants(self, *arguments, status=0):
        ran = subprocess.run([PLEAT, "tenants", *arguments], capture_output=True, text=True,
                             env=self.environment, timeout=LATEST)
        self.assertEqual(ran.returncode, status, ran.stderr)
        return ran.stdout if status == 0 else ran.stderr

    def listed(self):
        return {entry["name"]: entry
                for device in json.loads(self.tenants("--json"))["devices"] for entry in device["tenants"]}

    def start(self, name, settings=""):
        """A job that repeats until it is killed."""
        conf = ",".join(filter(None, ["tenants:user,tenant:" + name, settings]))
        self.jobs.append(subprocess.Popen(
            [PLEAT, "replay", SNAPSHOT, "--repeat", "1000000"], stdout=subprocess.DEVNULL,
            env={**self.environment, "PLEAT_CONF": conf}))
        self.wait_for(lambda: self.listed().get(name, {}).get("use_bytes", 0) > 9 << 30)
        return self.jobs[-1]

    def wait_for(self, true):
        begun = time.monotonic()
        while not true():
            self.assertLess(time.monotonic() - begun, LATEST)
            time.sleep(0.02)

    def test_jobs_from_their_start_to_their_death(self):
        self.assertIn("There is no ledger", self.tenants())
        self.assertEqual(json.loads(self.tenants("--json")), {"devices": []})
        first = self.start("first", "guarantee:20g,priority:3")
        second = self.start("second")
        found = self.listed()
        self.assertEqual(set(found), {"first", "second"})
        self.assertEqual(found["first"]["process"], first.pid)
        self.assertEqual(found["first"]["guarantee_bytes"], 20 << 30)
        self.assertEqual(found["first"]["priority"], 3)
        self.assertEqual(found["second"]["user"], os.geteuid())
        self.assertTrue(all(entry["alive"] and not entry["damaged"] for entry in found.values()))
        text = self.tenants()
        for word in ("host-0", "140.000 GiB", "first", "second", "20.000", "guarantee", "borrows"):
            self.assertIn(word, text)
        self.assertTrue(text.startswith("host-0: "), text)  # of a group's it would be said
        self.assertEqual(self.tenants("watch", "--count", "2", "--interval", "0.05").count("host-0"), 2)
        self.assertIn("begins with 'GPU-'", self.tenants("--device", "GPU-", status=3))
        self.check_terms()
        self.check_prometheus(found)
        # One that is killed is seen to be dead, and goes when somebody asks or cleans up.
        second.send_signal(signal.SIGKILL)
        second.wait()
        self.wait_for(lambda: not self.listed().get("second", {"alive": False})["alive"])
        self.assertIn('name="first"', self.tenants("--prometheus"))
        self.assertNotIn('name="second"', self.tenants("--prometheus"))
        self.tenants("remove-dead")
        self.assertEqual(set(self.listed()), {"first"})

    def check_terms(self):
        self.tenants("set", "second", "--guarantee", "10GiB", "--cap", "100GiB", "--priority", "7")
        entry = self.listed()["second"]
        self.assertEqual((entry["guarantee_bytes"], entry["cap_bytes"], entry["priority"]),
                         (10 << 30, 100 << 30, 7))
        self.assertIn("does not fit", self.tenants("set", "second", "-g", "125GiB", "-c", "130GiB", status=5))
        self.assertIn("no size", self.tenants("set", "second", "-g", "lots", status=2))
        self.assertIn("whole number", self.tenants("set", "second", "--priority", "0.5", status=2))
        self.assertIn("there is no tenant 'third'", self.tenants("set", "third", "-g", "1GiB", status=3))
        self.assertIn("set takes one TENANT", self.tenants("set", status=2))
        self.tenants("reclaim", str(entry["tenant"]))
        self.assertIn("wants --guarantee", self.tenants("set", "second", status=2))
        self.assertIn("options of set TENANT", self.tenants("--cap", "1g", status=2))
        self.assertIn("options of watch", self.tenants("set", "second", "-n", "1", status=2))
        for wrong, said in ((["set"], "set takes one TENANT"), (["reclaim"], "reclaim takes one TENANT"),
                            (["set", "a", "b"], "set takes one TENANT"), (["watch", "x"], "watch takes no operand"),
                            (["remove-dead", "x"], "remove-dead takes no operand"), (["sett"], "no command 'sett'")):
            self.assertIn(said, self.tenants(*wrong, status=2))

    def check_prometheus(self, found):
        lines = self.tenants("--prometheus").splitlines()
        values = [line for line in lines if line.startswith("pleat_tenant_guarantee_bytes{")]
        self.assertEqual(len(values), 2)
        self.assertIn('name="first"', values[0])
        self.assertEqual(int(values[0].rsplit(" ", 1)[1]), found["first"]["guarantee_bytes"])
        self.assertEqual(sum(line.startswith("# TYPE ") for line in lines), 7)

    def test_conf_says_what_the_environment_allows(self):
        def conf(*arguments, **more):
            return subprocess.run([PLEAT, "conf", *arguments], capture_output=True, text=True,
                                  env={**self.environment, **more})

        allowed = {"CUDA_DEVICE_MEMORY_LIMIT": "3000m", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,2=512M"}
        self.assertEqual(json.loads(conf("--json").stdout)["limits"], [])
        found = json.loads(conf("--json", **allowed).stdout)["limits"]
        self.assertEqual([(one["from_device"], one["to_device"], one["bytes"] >> 20) for one in found],
                         [(0, 0, 1024), (1, 1, 3000), (2, 2, 512), (3, 63, 3000)])
        self.assertIn("device 2 this process may take 512.000 MiB", conf(**allowed).stdout)
        self.assertIn("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT says so", conf(**allowed).stdout)
        wrong = conf(GPU_MEMORY_LIMIT="lots")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("GPU_MEMORY_LIMIT is 'lots'", wrong.stderr)

    def test_conf_refuses_what_a_run_refuses(self):
        def conf(settings):
            return subprocess.run([PLEAT, "conf"], capture_output=True, text=True,
                                  env={**self.environment, "PLEAT_CONF": settings})

        for settings, says in (("spill:on", "takes off or host, not 'on'"), ("log_bytes:1", "takes 128k to 64m"),
                               ("log_ms:0", "takes 1 to 3600000"), ("collect:101", "takes 0 to 99"),
                               ("guarantee:9000g", "add tenants:user"), ("tenants:nogroupx", "no group 'nogroupx'")):
            ran = conf(settings)
            self.assertEqual(ran.returncode, 2, settings)
            self.assertIn(says, ran.stderr)
        ran = conf("tenants:user, guarantee:2GiB, log_ms:5")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("milliseconds between its records (1 to 3600000)", " ".join(ran.stdout.split()))

    def test_a_device_that_no_ledger_is_of_is_not_there(self):
        """One that is watched may be to come."""
        def ran(*arguments):
            return subprocess.run([PLEAT, "tenants", *arguments, "--device", "zz"], capture_output=True, text=True,
                                  env=self.environment)
        for arguments in ((), ("--json",), ("--prometheus",), ("remove-dead",), ("reclaim", "first")):
            done = ran(*arguments)
            self.assertEqual((done.returncode, done.stdout), (3, ""), arguments)
            self.assertIn("no ledger in", done.stderr)
            self.assertIn("whose name begins with 'zz'", done.stderr)
        watched = ran("watch", "--count", "1")
        self.assertEqual(watched.returncode, 0, watched.stderr)
        self.assertIn("No ledger in", watched.stdout)

    def test_what_is_not_trusted_is_said_and_left(self):
        self.start("first")
        [name] = os.listdir(self.folder.name)
        path = os.path.join(self.folder.name, name)
        os.chmod(path, 0o666)
        ran = subprocess.run([PLEAT, "tenants"], capture_output=True, text=True, env=self.environment)
        self.assertIn("not trusted", ran.stderr)
        self.assertIn(path, ran.stderr)
        refused = subprocess.run([PLEAT, "replay", SNAPSHOT], capture_output=True, text=True,
                                 env={**self.environment, "PLEAT_CONF": "tenants:user"})
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("its mode is not 0600", refused.stderr)
        os.chmod(path, 0o600)
        self.assertEqual(set(self.listed()), {"first"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
