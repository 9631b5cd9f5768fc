"""Variables of a program's environment that begin with PLEAT_: which there are, and which nothing reads."""

import difflib

from . import _stderr

# Variables that are no options: where parts of Pleat are, what stands for a GPU, and what builds read.
OTHERS = {
    "PLEAT_" + name
    for name in ("BROWSER", "COMMAND", "CONTENTS", "CUDA_LIBRARY", "ESTIMATE", "INCLUDE", "JEMALLOC", "LIBRARY", "NCCL",
                 "NO_GPU", "NO_GPU_BYTES", "NO_GPU_CAPABILITY", "NO_GPU_DEVICES", "NVML_LIBRARY", "PROCESSOR",
                 "PYTORCH_TESTS", "SHARED", "TENANTS_DIR", "TORCH_PYTHON")
}
OWN = ("PLEAT_RUN", "PLEAT_FAKE_", "PLEAT_TEST")  # of Pleat's processes among themselves, and of its tests
TOLD = "PLEAT_RUN_UNKNOWN"  # set for what a program starts: it was said


def variable(option):
    return "PLEAT_" + option.lstrip("-").upper().replace("-", "_")


def known(parser):
    return {variable(option) for action in parser._actions for option in action.option_strings
            if option.startswith("--") and option != "--help"} | OTHERS


def warn_of_unknown(parser, environment):
    """Says once which variables nothing reads, one that was mistyped for instance."""
    names = known(parser)
    unknown = sorted(name for name in environment
                     if name.startswith("PLEAT_") and not name.startswith(OWN) and name not in names)
    for name in unknown if TOLD not in environment else []:
        near = difflib.get_close_matches(name, names, 1, 0.8)
        _stderr.say("pleat: warning: nothing reads the variable %s%s" % (name, "; did you mean %s?" % near[0] if near else ""))
    if unknown:
        environment[TOLD] = "on"


def warn_of_unread(parser, environment):
    """Under `pleat run`, which has options for them: what PLEAT=1 reads, but for the settings."""
    for action in parser._actions:
        option = (action.option_strings or [""])[-1]
        name = variable(option)
        if option.startswith("--") and name != "PLEAT_CONF" and environment.get(name):
            _stderr.say("pleat run: warning: it does not read the variable %s: give it %s" % (name, option))
