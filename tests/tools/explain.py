"""Tests of `pleat explain`: explain.py PLEAT SNAPSHOT."""

import functools
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import here
import made

PLEAT, SNAPSHOT = sys.argv[1:3]


def run(*arguments):
    return of_the_job(*arguments) if SNAPSHOT in arguments else ran(*arguments)


ran = here.runs(PLEAT)


@functools.lru_cache(maxsize=None)
def of_the_job(*arguments):
    """What several tests look at."""
    return ran(*arguments)


class Explain(here.Folder):
    def test_words_carry_the_figures(self):
        text = run("explain", SNAPSHOT)
        self.assertEqual(text.returncode, 0, text.stderr)
        ran = run("explain", SNAPSHOT, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)
        native = {p["policy"]: p for p in told["policies"]}["native"]
        self.assertIn(f"{told['max_live_bytes'] / 2**30:.3f} GiB are live at once", text.stdout)
        self.assertIn(f"It takes {native['peak_physical_bytes'] / 2**30:.3f} GiB", text.stdout)
        self.assertIn(f"event {native['peak_at']}, iteration", text.stdout)
        self.assertLessEqual(native["split_growths"], native["growths"])
        self.assertGreater(native["split_bytes"], 0)
        # What is beyond max-live is what it grew for there, to the byte, and no more.
        blamed = native["beyond_by"]
        beyond = native["peak_physical_bytes"] - told["max_live_bytes"]
        self.assertLessEqual(sum(g["bytes"] for g in blamed), beyond)
        self.assertGreater(sum(g["bytes"] for g in blamed), beyond // 2)
        self.assertLessEqual(native["split_bytes"], beyond)
        self.assertEqual([g["bytes"] for g in blamed],
                         sorted((g["bytes"] for g in blamed), reverse=True))
        self.assertIn(f"{blamed[0]['count']} of {blamed[0]['size'] / 2**20:.3f} MiB", text.stdout)
        growth = told["growth"]
        self.assertGreaterEqual(growth["pleat_times"], growth["native_times"])
        self.assertIn(f"Under Pleat the microbatch can be {growth['pleat_times']:.3g} times", text.stdout)
        self.assertIn("the recording does not say what its device has", text.stdout)
        for advice in told["advice"]:
            self.assertIn(advice["text"], text.stdout)

    def test_the_plan_of_each_gpu_has_a_name_of_its_own(self):
        """What is to be done is taken by the command that it is for."""
        path, snapshots = self.path("job.pickle"), []
        for batch in (4, 2):
            made.record(path, [batch] * 6)
            with open(path, "rb") as file:
                snapshots.append(pickle.load(file))
        with open(path, "wb") as file:
            pickle.dump(dict(snapshots[0], device_traces=[one["device_traces"][0] for one in snapshots]), file)
        told = json.loads(ran("explain", path, "--json").stdout)["devices"]
        commands = {one["command"] for gpu in told.values() for one in gpu["advice"] if one["what"] == "plan"}
        (command,) = commands
        planned = shlex.split(command.partition(" && ")[0])
        done = subprocess.run([os.path.abspath(PLEAT), *planned[1:]], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue({"job0.plan", "job1.plan"} <= set(os.listdir(self.folder)))

    def test_what_another_stream_still_uses_is_not_idle(self):
        """A tensor is freed and in use until its free completes: a second one of its size needs memory of its own."""
        events = []

        def add(action, number, mib, iteration):
            events.append(dict(action=action, addr=number << 34, size=mib << 20, stream=0, time_us=10 * len(events),
                               user_metadata="iter=%d;phase=F" % iteration))

        for i in range(6):
            add("alloc", 1, 100, i)
            add("free_requested", 1, 100, i)
            add("alloc", 2, 100, i)
            add("alloc", 3, 50, i)
            for action, number, mib in (("free_completed", 1, 100), ("free_requested", 2, 100), ("free_completed", 2, 100),
                                        ("free_requested", 3, 50), ("free_completed", 3, 50)):
                add(action, number, mib, i)
        path = self.path("job.pickle")
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [events]}, file)
        told = json.loads(ran("explain", path, "--json").stdout)
        pleat = {p["policy"]: p for p in told["policies"]}["pleat"]
        self.assertEqual(told["max_live_bytes"], 250 << 20)
        self.assertEqual((pleat["peak_physical_live_bytes"], pleat["peak_idle_bytes"]), (250 << 20, 0))

    def test_measured_savings_are_those_of_the_replays(self):
        told = json.loads(run("explain", SNAPSHOT, "--json").stdout)
        held = {p["policy"]: p["peak_physical_bytes"] for p in told["policies"]}
        saved = {a["what"]: a["saved_bytes"] for a in told["advice"]}
        for policy in ("pleat", "expandable"):
            self.assertEqual(saved[policy], held["native"] - held[policy])
        tried = told["plan"]["replayed"]
        self.assertFalse(tried["learning_is_better"])
        self.assertEqual(saved["plan"], held["native"] - tried["planned_bytes"])
        self.assertEqual(saved["split"], held["native"] - told["growth"]["half_physical_bytes"])
        self.assertGreater(told["growth"]["half_physical_bytes"], held["native"] // 2)
        hows = {a["what"]: a["how"] for a in told["advice"]}
        self.assertEqual((hows["recompute"], hows["plan"]), ("at most", "measured"))
        # Of one recording sizes at another microbatch are assumed.
        self.assertEqual(hows["split"], "estimated")
        savings = [a["saved_bytes"] for a in told["advice"]]
        self.assertEqual(savings, sorted(savings, reverse=True))

    def test_where_nothing_shows_what_grows_no_growth_is_told(self):
        table = self.path("weights.csv")
        with open(table, "w") as file:
            file.write("id,lower,upper,size\n" + "".join(f"{i},{i},9,{(1 << 20) + i}\n" for i in range(9)))
        text = run("explain", table).stdout
        self.assertIn("Under Pleat the recorded microbatch fits; nothing shows what would grow with it.", text)
        self.assertEqual(json.loads(run("explain", table, "--json").stdout)["growth"]["native_times"], 1)
        self.assertIn("at least 1 x", run("compare", table, "--policies", "native").stdout)

    def test_a_job_that_does_not_fit(self):
        """What the native allocator had when it ran out is no measure of what others save."""
        for device, fits in (("9660MiB", "It fits under Pleat with a plan made beforehand (pleat plan): in 9.422 GiB."),
                             ("9GiB", "Under none of the allocators here does all of it fit: it needs 9.420 GiB")):
            text = run("explain", SNAPSHOT, "-d", device).stdout
            self.assertRegex(text, r"Does not fit in 9\.\d+ GiB\. At request \d+ of 46356:\n  out of memory: 786")
            self.assertIn(fits, text)
            self.assertIn("It fits at half the microbatch: in ", text)
            self.assertNotIn("It takes", text)
            self.assertNotIn("the recording does not say", text)
            self.assertNotIn("Nothing known here saves", text)
        text = run("explain", SNAPSHOT, "-d", "7GiB").stdout
        self.assertRegex(text, r"  It fits under Pleat at 0\.\d times the microbatch: in 6\.\d+ GiB, estimated\.\n")
        advice = json.loads(run("explain", SNAPSHOT, "-d", "9GiB", "--json").stdout)["advice"]
        self.assertEqual({a["what"] for a in advice}, {"recompute", "offload"})
        self.assertIn("Under Pleat no microbatch fits, not even a tenth",
                      run("explain", SNAPSHOT, "-d", "2MiB").stdout)

    def test_a_job_larger_than_its_device_has_a_plan(self):
        """It was said not to repeat, and `pleat plan` refused it."""
        small, plan = (self.path(name) for name in ("small.trace", "small.plan"))
        self.assertEqual(run("import", SNAPSHOT, "-d", "9GiB", "-o", small).returncode, 0)
        text = run("explain", small).stdout
        self.assertIn("Does not fit in 9.000 GiB", text)
        self.assertNotRegex(text, "(?i)no iteration repeats|nothing to plan|no plan")
        told = run("plan", small, "-o", plan)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertRegex(told.stdout, r"\nIt takes 9\.4\d+ GiB, and the recording's device has 9\.000 GiB: "
                                      r"the plan is for a larger one\.\n")
        self.assertEqual(run("verify", plan).returncode, 0)
        self.assertEqual(run("replay", small, "-P", plan, "-d", "h200").returncode, 0)
        self.assertEqual(run("replay", small, "-P", plan).returncode, 4)
        self.assertNotIn("larger one", run("plan", SNAPSHOT).stdout)

    def test_why_there_is_no_plan(self):
        self.assertIn("  There is no plan of it: no iteration repeats in the ",
                      run("explain", self.refused(12 << 20)).stdout)

    def drawn(self, *arguments):
        """A drawn job's recording."""
        path = self.path("-".join(arguments).replace("/", "") + ".pickle")
        here.draw(path, *arguments)
        return path

    def test_a_plan_is_offered_where_a_run_would_follow_it(self):
        """What `pleat plan` says of its plan is what is said here, by the same plan and the same trial."""
        for path in (SNAPSHOT, self.drawn("--seed", "4", "--family", "moe")):
            text = run("explain", path).stdout
            told = json.loads(run("explain", path, "--json").stdout)
            planned = json.loads(run("plan", path, "--json").stdout)
            self.assertEqual(told["plan"]["physical_bytes"], planned["physical_bytes"])
            self.assertEqual(told["plan"]["live_at_peak"], {name: size for name, size in planned["live_at_peak"].items()
                                                            if name != "small"})
            tried, (judged,) = told["plan"]["replayed"], planned["replayed"]
            for key in ("planned_bytes", "learned_bytes", "planned_share", "learning_is_better"):
                self.assertEqual(tried[key], judged[key])
            lost = judged["learning_is_better"]
            self.assertEqual("plan" in {advice["what"] for advice in told["advice"]}, not lost)
            self.assertEqual("would not follow the plan" in text, lost)
            for reason in re.findall("speaks against the plan: (.*)\n", run("plan", path).stdout):
                self.assertIn(f"A run would not follow the plan: {reason}.\n", text)
            self.assertIn(f"the job takes {tried['planned_bytes'] / 2**30:.3f} GiB with it", text)
        self.assertTrue(lost)

    def test_without_labels_phases_are_not_told(self):
        """A table's rise and fall is no forward and backward: its weights were called scoped."""
        table = self.path("table.csv")
        with open(table, "w", encoding="utf-8") as file:
            file.write("id,lower,upper,size\n1,0,9,52428800\n2,1,7,104857600\n3,2,3,734003200\n4,8,9,2097152\n")
        for path in (table, self.drawn("--seed", "5", "--family", "moe", "--no-marks")):
            text = run("explain", path).stdout
            told = json.loads(run("explain", path, "--json").stdout)
            for classes in (told["plan"]["live_at_peak"], json.loads(run("plan", path, "--json").stdout)["live_at_peak"]):
                self.assertFalse({"transient", "scoped"} & set(classes))
                self.assertGreater(classes["within"], 0)
            self.assertNotIn("recompute", {advice["what"] for advice in told["advice"]})
            self.assertNotRegex(text + run("plan", path).stdout, "scoped|recompute|keeps for backward")
        with open(table, "r+b") as file:
            said = file.read()
            file.seek(0)
            file.write(b"\xef\xbb\xbf" + said)  # as spreadsheets begin it
        self.assertEqual(run("import", table).returncode, 0)

    def test_limits_of_the_environment_are_not_the_jobs(self):
        """They made the native allocator run out of memory in a device of 80 GiB."""
        limits = ("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "GPU_MEMORY_LIMIT",
                  "NVIDIA_GPU_MEMORY_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
        limited = {**os.environ, **{name: "1g" for name in limits}}
        for line in (("explain", SNAPSHOT, "-d", "80GiB"), ("compare", SNAPSHOT, "-p", "native,pleat", "-d", "80GiB")):
            free = run(*line)
            self.assertEqual((free.returncode, free.stderr), (0, ""))
            told = subprocess.run([PLEAT, *line], capture_output=True, text=True, check=False, env=limited)
            self.assertEqual((told.returncode, told.stdout), (0, free.stdout))
        planned = subprocess.run([PLEAT, "plan", SNAPSHOT], capture_output=True, text=True, check=False, env=limited)
        self.assertIn("replayed, ", planned.stdout)

    def test_small_sizes_have_small_units_and_no_iteration_is_made_up(self):
        table = self.path("small.csv")
        with open(table, "w", encoding="utf-8") as file:
            file.write("id,lower,upper,size\n1,0,5,524288\n2,1,7,1048576\n")
        text = run("explain", table).stdout
        self.assertIn("At most 1.500 MiB are live at once, in 2 tensors: at event 1 of 4.\n", text)
        self.assertNotRegex(text, "under 0.001|iteration [0-9]")

    def test_commands_can_be_copied(self):
        """What is no command has another key; a recording is named, in quotes where a shell needs them."""
        path = self.path("my job.pickle.gz")
        shutil.copy(SNAPSHOT, path)
        text = run("explain", path).stdout
        for advice in json.loads(run("explain", path, "--json").stdout)["advice"]:
            self.assertEqual("change" in advice, advice["what"] in ("recompute", "split", "offload"))
            self.assertIn(advice.get("command", advice.get("change")), text)
            if advice["what"] == "plan":
                first = advice["command"].split(" && ")[0]
                self.assertEqual(shlex.split(first), ["pleat", "plan", path, "-o", "job.plan"])
        self.assertNotIn("RECORDING -o", text)

    def test_texts_of_recordings_are_no_commands_to_a_terminal(self):
        """Not what begins one with ESC, nor by its byte or its character alone, nor a line's end."""
        label, events = "iter={};phase=\x1b[31mred\n\x9b2Jé\x7f", []
        for i in range(4):
            for action, at in (("alloc", 2 * i), ("free_requested", 2 * i + 1), ("free_completed", 2 * i + 1)):
                events.append({"action": action, "addr": 1 << 40, "size": 4 << 20, "stream": 0, "time_us": at,
                               "user_metadata": label.format(i)})
        path = self.path("label.pickle")
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [events]}, file)
        done = subprocess.run([PLEAT, "explain", path], capture_output=True, check=True)
        self.assertIn(r"phase \x1b[31mred\n\xc2\x9b2Jé\x7f".encode() + b".\n", done.stdout)
        self.assertNotRegex(done.stdout, rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
        # In JSON it is the text itself.
        self.assertEqual(json.loads(run("explain", path, "--json").stdout)["max_live_phase"],
                         "\x1b[31mred\n\x9b2Jé\x7f")

    def refused(self, free, last=True, size=60 << 20, name="oom.pickle"):
        """Fifty of 2 MiB, every second one freed, in segments of their own; then 60 MiB are refused."""
        events, mib = [], 1 << 20
        for i in range(50):
            place = (1 << 40) + i * 4 * mib
            for action in ("segment_alloc", "alloc"):
                events.append({"action": action, "addr": place, "size": 2 * mib, "stream": 0, "time_us": i})
        for i in range(0, 50, 2):
            place = (1 << 40) + i * 4 * mib
            events += [{"action": action, "addr": place, "size": 2 * mib, "stream": 0, "time_us": 60}
                       for action in ("free_requested", "free_completed")]
        events.append({"action": "oom", "size": size, "device_free": free, "stream": 0, "time_us": 61})
        if not last:
            events.append({"action": "alloc", "addr": 1 << 41, "size": 2 * mib, "stream": 0, "time_us": 62})
        path = self.path(name)
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [[*events, {"action": "snapshot"}]]}, file)
        return path

    def test_a_refusal_is_told_and_who_would_have_served_it(self):
        """The request for which the job ended, which is no allocation, was thrown away."""
        path = self.refused(12 << 20)
        line = "The recording ends with a refusal: 60.000 MiB were asked for, with 12.000 MiB free on device 0.\n"
        self.assertIn(line, run("import", path).stdout)
        text = run("explain", path).stdout
        self.assertIn("The refusal\n  " + line, text)
        self.assertIn("  With it 110.000 MiB are live; the allocator held 100.000 MiB, and with what was free 112.000 MiB.\n", text)
        told = json.loads(run("explain", path, "--json").stdout)["refusal"]
        policies = {p["policy"]: p for p in told.pop("policies")}
        self.assertEqual(told, {"count": 1, "device": 0, "request_bytes": 60 << 20, "free_bytes": 12 << 20, "last": True,
                                "live_bytes": 110 << 20, "held_bytes": 100 << 20, "room_bytes": 112 << 20})
        self.assertEqual({name: p["serves"] for name, p in policies.items()},
                         {"native": False, "expandable": False, "pleat": True})
        self.assertEqual(policies["pleat"]["takes_bytes"], 110 << 20)
        self.assertGreater(policies["native"]["takes_bytes"], 112 << 20)
        self.assertIn("Pleat: serves it, and takes ", text)
        self.assertRegex(text, r"PyTorch's native allocator: refuses it; it would take \d")
        # Another device is asked about; what is live does not fit; what comes behind it.
        self.assertTrue(all(p["serves"] for p in json.loads(
            run("explain", path, "-d", "1GiB", "--json").stdout)["refusal"]["policies"]))
        self.assertIn("less than what is live then, no allocator serves it", run("explain", self.refused(1 << 20)).stdout)
        self.assertIn("The recording has a refusal", run("explain", self.refused(12 << 20, False)).stdout)
        self.assertEqual(json.loads(run("import", path, "-j").stdout)["refusals"], 1)
        self.assertNotIn("refusal", run("explain", SNAPSHOT).stdout)
        # What to run is told as a shell reads it.
        self.assertIn("pleat explain '" + self.refused(12 << 20, name="out of memory.pickle") + "'. Only",
                      run("import", self.path("out of memory.pickle")).stdout)

    def test_a_refusal_of_more_than_any_trace_holds_is_told(self):
        """As one gets where a shape is wrong."""
        ran = run("explain", self.refused(12 << 20, size=10**15), "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)["refusal"]
        self.assertEqual(told["request_bytes"], 10**15)
        self.assertEqual([(p["serves"], p["takes_bytes"]) for p in told["policies"]], [(False, 0)] * 3)

    def test_a_snapshot_without_history_is_refused(self):
        """Its figures were those of what was live at the end, in the order of its addresses."""
        path = self.path("off.pickle")
        block = {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated"}
        with open(path, "wb") as file:
            pickle.dump({"segments": [{"device": 0, "address": 4096, "total_size": 1 << 21, "stream": 0, "blocks": [block]}],
                         "device_traces": [[], []]}, file)
        for command in ("import", "explain", "compare", "plan", "replay"):
            ran = run(command, path)
            self.assertEqual((ran.returncode, ran.stdout), (3, ""), command)
            self.assertIn("it holds what was live at the end and no events: was the recording on?", ran.stderr)

    def test_what_a_budget_needs_is_named(self):
        """The remedy was to write a plan, which is no recording."""
        ran = run("explain", SNAPSHOT, "--budget", "8GiB")
        self.assertEqual(ran.returncode, 3)
        self.assertIn("a job under `pleat run --recompute auto` that calls pleat.save_trace(FILE)", ran.stderr)

    def test_bad_use(self):
        for arguments in [[], [SNAPSHOT, "-d", "much"], [SNAPSHOT, "--none"]]:
            self.assertEqual(run("explain", *arguments).returncode, 2, arguments)
        self.assertEqual(run("explain", __file__).returncode, 3)
        self.assertIn("usage: pleat explain", run("explain", "--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
