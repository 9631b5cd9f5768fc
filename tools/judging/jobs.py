"""The jobs by which Pleat is judged, each of them a name and what writes its snapshot.

`write(path, run, marks)`: run 0 is the one that is replayed; another run is the same job at another
time, where there is one to have, and serves to make a plan. Without marks the snapshot names no
iterations. All can be written again and are the same then.
"""

import collections
import concurrent.futures
import gzip
import hashlib
import subprocess
import sys
import tempfile

from . import made_up, replays

from recording import write as write_snapshot  # where made_up has found it
import weave

WORKLOADS = replays.ROOT / "tools/workloads"
BUNDLED = WORKLOADS / "gpt2-vpp-recompute.pickle.gz"
RECORDINGS = replays.ROOT.parent / "shared/traces"

# A family's seed whose job is small. What drawn.py makes of a seed may change: then so do these.
DRAWN = (("decoder", 18), ("graph", 10), ("unet", 8), ("detector", 270), ("lora", 29), ("moe", 17),
         ("encoder-decoder", 4), ("decoder", 285))

Job = collections.namedtuple("Job", "name write")


def run_tool(*command):
    done = subprocess.run([sys.executable, "-B", *map(str, command)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise replays.Failed("%s: exit status %d: %s" % (
            " ".join(map(str, command)), done.returncode, done.stderr.strip()))


def without_marks(path):
    """Rewrites a snapshot without its labels."""
    with gzip.open(path, "rb") as packed:
        snapshot = weave.Plain(packed).load()
    for events in snapshot["device_traces"]:
        for event in events:
            event["user_metadata"] = ""
    write_snapshot(snapshot, str(path))


def digest(path):
    """What tells a snapshot from one of another job, or of the same drawn otherwise."""
    with gzip.open(path, "rb") as packed:
        traces = weave.Plain(packed).load()["device_traces"]
    told = [[(e["action"], e["addr"], e["size"], e["stream"], e["time_us"], e.get("user_metadata"))
             for e in events] for events in traces]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def written_once(name, make):
    """A job of which there is one run: make(path) writes its snapshot, with labels."""
    def write(path, run, marks):
        make(path)
        if not marks:
            without_marks(path)
    return Job(name, write)


def recorded(name, snapshot):
    return written_once(name, lambda path: path.write_bytes(snapshot.read_bytes()))


def unlabelled(name, snapshot):
    def make(path):
        path.write_bytes(snapshot.read_bytes())
        without_marks(path)
    return written_once(name, make)


def woven(name, how, *options):
    """What workloads/weave.py makes of the bundled recording."""
    return written_once(name, lambda path: run_tool(WORKLOADS / "weave.py", how, BUNDLED, *options, "-o", path))


def made(make):
    return written_once("made-up-" + make.__name__, lambda path: made_up.write(make, path))


def drawn(seed, iterations=None):
    """What workloads/drawn.py draws from a seed."""
    def write(path, run, marks):
        options = [] if marks else ["--no-marks"]
        options += ["--iterations", iterations] if iterations else []
        run_tool(WORKLOADS / "drawn.py", "--seed", seed, "--run", run, *options, "-o", path)
    return Job("seed-%d" % seed, write)


def own():
    """Those that every checkout has: the bundled recording, three made of it, small ones made up, and
    a short drawn one of each family."""
    return [recorded("bundled", BUNDLED),
            unlabelled("bundled-without-labels", BUNDLED),
            woven("bundled-resumed", "resume"),
            woven("bundled-with-a-tensor-more", "add", "--bytes", "8500000", "--iteration", "2"),
            *map(made, made_up.JOBS),
            *(drawn(seed, 5)._replace(name="drawn-%s-%d" % (family, seed)) for family, seed in DRAWN)]


def recordings(folder):
    """Of further snapshots, where there are any."""
    return [recorded("recorded-" + path.name[:-len(".pickle.gz")], path)
            for path in sorted(folder.glob("*.pickle.gz"))]


def named(names, jobs):
    known = {job.name: job for job in jobs}
    for name in names:
        if name not in known:
            raise replays.Failed("there is no job '%s'; there are: %s" % (name, " ".join(known)))
    return [known[name] for name in names]


def each(jobs, abreast, work):
    """job's name -> work(job, folder), so many at once; a job that cannot be run ends it all."""
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(abreast) as pool:
        futures = {pool.submit(work, job, folder): job.name for job in jobs}
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return {name: future.result() for future, name in futures.items()}
