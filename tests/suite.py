"""How the tests in Python begin and end: in a Python that has what they need, and with what they left out and
why, for tools/check to tell."""

import collections
import os
import sys
import unittest

MOSTLY_SKIPPED = 77  # an exit status that ctest shows as "Skipped"


def main(needs_torch=False):
    """Runs the tests of the program's own file. Where they need torch and this Python has none,
    $PLEAT_TORCH_PYTHON, which has, takes its place."""
    other = os.environ.pop("PLEAT_TORCH_PYTHON", None) if needs_torch else None
    if other and sys.modules.get("torch") is None:
        os.execv(other, [other, "-B", *sys.argv])
    result = unittest.main(argv=sys.argv[:1], exit=False).result
    tell(result.skipped)
    sys.exit(status(result))


def status(result):
    """Nothing that failed is hidden by what was skipped."""
    if not result.wasSuccessful():
        return 1
    return MOSTLY_SKIPPED if 2 * len(result.skipped) > result.testsRun else 0


def tell(skipped):
    """A line a reason, as tests/skipped reads them."""
    reasons = collections.defaultdict(list)
    for test, reason in skipped:
        reasons[reason].append(test.id().rpartition(".")[2])
    for reason, names in reasons.items():
        what = names[0] if len(names) == 1 else "%d tests" % len(names)
        print("not tested: %s: %s" % (what, reason), file=sys.stderr)
