"""Snapshots of every torch from 2.1 on, and of AMD: formats.py PLEAT. README.md says how they were made."""

import copy
import gzip
import json
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.dont_write_bytecode = True
import suite  # noqa: E402

PLEAT = sys.argv[1]
MIB = 1 << 20
FILES = sorted(HERE.glob("torch-*.pickle.gz"))
LABELS_FROM, ANNOTATES_FROM = (2, 10), (2, 14)
# What record.py does: three iterations of five requests, one that was there before and one at the end; the most
# live is 10, 3 and 24 MiB and 1000 bytes. On the second device a tensor an iteration stays.
DID = {0: {"requests": 17, "frees": 15, "peak_live_bytes": 37 * MIB + 1024, "segments": 8,
           "peak_segment_bytes": 116 * MIB, "streams": 4},
       1: {"requests": 3, "frees": 0, "peak_live_bytes": 15 * MIB, "segments": 1, "peak_segment_bytes": 20 * MIB,
           "streams": 1}}


def version_of(path):
    return tuple(map(int, re.findall(r"\d+", path.name)[:2]))


def read(path):
    with gzip.open(path) as file:
        return pickle.load(file)


def imported(path, device=None):
    return subprocess.run([PLEAT, "import", str(path), "--json", *([] if device is None else ["--device", str(device)])],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def annotations(snapshot):
    """Of each device: the size of the tensor at the address, and what is said of it."""
    found = []
    for trace in snapshot["device_traces"]:
        live, said = {}, []
        for event in trace:
            if event["action"] == "alloc":
                live[event["addr"]] = event["size"]
            elif event["action"] == "annotate":
                said.append((live[event["addr"]], event["user_metadata"]))
        found.append(said)
    return found


class Formats(unittest.TestCase):
    def holds(self, path, device, labels):
        done = imported(path, device)
        self.assertEqual(done.returncode, 0, (path.name, done.stderr))
        told = json.loads(done.stdout)
        self.assertEqual({name: told[name] for name in DID[device]}, DID[device], path.name)
        self.assertEqual(told["labels"], labels, path.name)

    def test_every_version_is_there(self):
        self.assertEqual({version_of(path) for path in FILES}, {(2, minor) for minor in range(1, 15)})

    def test_each_is_read_whatever_its_keys(self):
        for path in FILES:
            labels = version_of(path) >= LABELS_FROM
            self.holds(path, 0, 6 if labels else 0)
            self.holds(path, 1, 3 if labels else 0)

    def test_of_several_devices_each_is_told(self):
        done = imported(FILES[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([told["devices"] for told in json.loads(done.stdout)["devices"].values()], [[0], [1]])
        none = imported(FILES[0], 2)
        self.assertEqual(none.returncode, 3)
        self.assertIn("it has no events of device 2, but of 0, 1", none.stderr)

    def test_annotations_are_kept_with_their_tensors(self):
        """record.py says "the fourth" of the tensor of 7 MiB in each of its three iterations."""
        for path in FILES:
            of_each = [3 * [(7 * MIB, "the fourth")], []] if version_of(path) >= ANNOTATES_FROM else [[], []]
            self.assertEqual(annotations(read(path)), of_each, path.name)
            with tempfile.TemporaryDirectory() as folder:
                back = pathlib.Path(folder, "back.pickle")
                done = subprocess.run([PLEAT, "export", str(path), "--device", "0", "-f", "snapshot", "-o", str(back)],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                self.assertEqual(done.returncode, 0, (path.name, done.stderr))
                self.assertEqual(annotations(pickle.loads(back.read_bytes())), of_each[:1], path.name)

    def test_amd(self):
        """The keys of torch 2.6, whose ROCm build has the same allocator; handles of streams with their top bits set."""
        made = copy.deepcopy(read(next(path for path in FILES if version_of(path) == (2, 6))))
        streams = {}
        for one in [*made["segments"], *(event for trace in made["device_traces"] for event in trace)]:
            if one["stream"]:
                one["stream"] = streams.setdefault(one["stream"], 0x7F00_0000_0000_0000 + 64 * len(streams))
        made["allocator_settings"] = {"PYTORCH_HIP_ALLOC_CONF": "expandable_segments:False"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "amd.pickle")
            path.write_bytes(pickle.dumps(made, protocol=4))
            for device in DID:
                self.holds(path, device, 0)

    def test_an_action_of_tomorrow_is_refused_by_name(self):
        made = read(FILES[-1])
        made["device_traces"][0][3]["action"] = "segment_compact"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "new.pickle")
            path.write_bytes(pickle.dumps(made, protocol=4))
            done = imported(path, 0)
        self.assertEqual(done.returncode, 3)
        self.assertIn("device_traces[0][3]: the action 'segment_compact' is none that is known here", done.stderr)


if __name__ == "__main__":
    suite.main()
