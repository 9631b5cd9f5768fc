"""Replays one job in every way in which it may be served, and keeps the figures that are judged.

Memory and the driver's time, which is modelled, are the same in every replay. Processor time is
measured, and whatever else the machine does adds to it: a replay whose times fall short is repeated,
and of each time the least is kept.
"""

import pathlib

from . import replays

REPEATS_MOST = 3  # replays of one way where its times fall short


# ---- figures ----

def per(total, count):
    return total / count if count else 0.0


def take(result):
    """What is judged of a replay's answer."""
    one = result["steady_iteration"]
    driver, aside = result["steady_driver_seconds"], result["steady_mapper_driver_seconds"]
    whole, steady = result["processor"], result["steady_processor"]
    return {
        "ended": not result["oom"],
        "iterations": result["iterations"],
        "requests": result["requests"],
        "peak_live_bytes": result["peak_live_bytes"],
        "peak_physical_bytes": result["peak_physical_bytes"],
        "efficiency": result["efficiency"],
        "steady_efficiency": result["steady_efficiency"],
        "planned_share": result["steady_planned_share"],
        "driver_ms": 1e3 * one["driver_seconds"],
        "driver_aside_ms": 1e3 * one["mapper_driver_seconds"],
        "driver_job_ms": 1e3 * sum(one["driver_seconds"] for one in result["first_iterations"]),
        "driver_share": per(driver + aside, result["steady_recorded_seconds"]),
        "late_driver_share": per(result["late_driver_seconds"], result["late_recorded_seconds"])
                             if result.get("late_iterations") else None,
        "recorded_seconds": result["recorded_seconds"],
        "processor_seconds": whole["seconds"],
        "processor_ms": 1e3 * per(steady["seconds"], result["steady_iterations"]),
        "call_median_ns": whole["median_ns"],
        "call_p999_ns": whole["p999_ns"],
        "longest_calls_us": [ns / 1e3 for ns in result["longest_calls_ns"]],
        "metadata_mib": result["metadata_bytes"] / 2**20,
    }


TIMES = ("processor_seconds", "processor_ms", "call_median_ns", "call_p999_ns")


def least(figures, again):
    """The figures with the lesser of the times of two replays."""
    kept = dict(figures, **{key: min(figures[key], again[key]) for key in TIMES})
    kept["longest_calls_us"] = list(map(min, figures["longest_calls_us"], again["longest_calls_us"]))
    return kept


# ---- trial ----

class Trial:
    """One job, from its drawing to the figures of all ways."""

    def __init__(self, pleat, job, folder):
        self.pleat, self.job, self.folder = pleat, job, pathlib.Path(folder)
        self.trace, self.plans, self.no_plans = None, {}, {}

    def path(self, name):
        return self.folder / ("%s.%s" % (self.job.name, name))

    def recorded(self, name, run, marks):
        """The job's trace; its snapshot goes."""
        snapshot = self.path(name + ".pickle.gz")
        try:
            self.job.write(snapshot, run, marks)
            return self.pleat.import_job(snapshot, self.path(name + ".trace"))
        finally:
            snapshot.unlink(missing_ok=True)

    def plan(self, marks):
        """Of another run; where there is none, why."""
        name = "marked" if marks else "unmarked"
        other = self.recorded("other-" + name, 1, marks)
        try:
            self.pleat.plan(other, self.path(name + ".plan"))
            self.plans[marks] = self.path(name + ".plan")
        except replays.Failed as failure:
            self.no_plans[marks] = str(failure).rsplit(": ", 1)[-1]

    def __enter__(self):
        self.trace = self.recorded("job", 0, True)
        for marks in (True, False):
            self.plan(marks)
        return self

    def __exit__(self, *_):
        for path in self.folder.glob(self.job.name + ".*"):
            path.unlink()

    def ways(self, among=replays.WAYS):
        """Those that there is a plan for, where they need one."""
        return [way for way in among if not way.planned or way.marked in self.plans]

    def replay(self, way):
        """One that breaks off has no figures but why; what follows from native's cannot do without."""
        try:
            return take(self.pleat.replay(self.trace, way, self.plans.get(way.marked)))
        except replays.Failed as failure:
            if way == replays.NATIVE:
                raise
            return {"ended": False, "failed": str(failure)}

    def repeat(self, figures, slow):
        """Once more what falls short, and what it is held against."""
        late = [way for way in self.ways() if slow(figures, way)]
        for way in late and [replays.NATIVE, *late]:
            again = self.replay(way)
            if again["ended"]:
                figures[way.name] = least(figures[way.name], again)

    def none(self):
        return {way.name: self.no_plans[way.marked] for way in replays.WAYS
                if way.planned and way.marked in self.no_plans}


def run(pleat, job, folder, slow):
    """{"job", "ways": way -> figures, "none": way -> why there are none}. slow(figures by way, way)
    says whether a way's times so far fall short."""
    with Trial(pleat, job, folder) as trial:
        figures = {way.name: trial.replay(way) for way in trial.ways()}
        for _ in range(REPEATS_MOST - 1):
            trial.repeat(figures, slow)
        return {"job": job.name, "ways": figures, "none": trial.none()}
