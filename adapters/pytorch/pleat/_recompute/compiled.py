"""A budget for what torch.compile keeps for backward: torch's own, torch._functorch.config.activation_memory_budget,
is set so that the memory that is really taken stays within the user's.

torch's is a share of what a graph would keep, 1 all of it, and nothing says beforehand what a share takes: peaks
are elsewhere than where activations are counted, and need not even grow with it. So shares are tried. Each one is
compiled for, and the iterations that compile nothing are measured by the memory that the device gave; when the
best is found, or TRIES were made, the largest share that fits is taken. Until then the budget does not hold.
"""

import math
import sys

FIRST = 0.5
TRIES = 5
NEAR = 1 / 16  # shares that are not told apart
WORTH = 0.02  # of the budget: what may be left
SAME, VARYING = 2, 8  # iterations that are measured, where all ask for the same memory and where they do not
LOWERINGS = 2  # after errors
GIB = 1 << 30


def gib_above(bytes):
    """In GiB, as a budget that is large enough when three digits of it are told."""
    return math.ceil(bytes * 1000 / GIB) / 1000


class Search:
    """The shares that were tried, and what is to be tried next."""

    def __init__(self, budget):
        self.budget = budget
        self.took = {}
        self.share = FIRST

    def fitting(self):
        return [share for share, took in self.took.items() if took <= self.budget]

    def tell(self, took):
        """What the share takes. Returns whether another one, now in `share`, is to be tried; else `share` is the
        largest that fits, and None where none does."""
        self.took[self.share] = took
        following = self.following() if len(self.took) < TRIES else None
        self.share = following if following is not None else max(self.fitting(), default=None)
        return following is not None

    def following(self):
        fitting = self.fitting()
        if not fitting:
            return min(self.took) / 2
        low = max(fitting)
        over = [share for share in self.took if share > low]
        if low == 1 or self.budget - self.took[low] <= WORTH * self.budget:
            return None
        if not over:
            return 1.0 if low + 1 / 4 >= 1 else (low + 1) / 2
        return (low + min(over)) / 2 if min(over) - low > NEAR else None


class Compiled:
    """A process's. `world`: as recompute.py has it, and

    took()   bytes of memory that the devices have given
    trim()   gives back what nothing lies on
    asked()  bytes that were ever asked for
    """

    def __init__(self, torch, budget, world):
        import torch._functorch.config

        self.torch, self.world, self.budget = torch, world, budget
        self.config = torch._functorch.config
        self.is_users = self.config.activation_memory_budget != 1  # the program has chosen itself
        self.search = Search(budget)
        self.chosen = False
        self.lowerings = self.errors = 0
        self.begin()

    # ---- shares ----

    def begin(self):
        """With a share, before its graphs are compiled."""
        if not self.is_users:
            self.config.activation_memory_budget = self.search.share
        self.frames = self.compiled()
        self.asked = None
        self.differences = []  # bytes asked for in each iteration that was measured

    def again(self):
        """All is compiled again, with another share."""
        self.torch._dynamo.reset()
        self.begin()
        self.world.trim()

    def compiled(self):
        """How often torch.compile has compiled a function."""
        utils = sys.modules.get("torch._dynamo.utils")
        return utils.counters["frames"]["total"] if utils is not None else 0

    def is_used(self):
        """Whether anything was compiled."""
        return self.compiled() != self.frames

    def leave(self):
        """There is nothing that is compiled."""
        if not self.is_users and self.config.activation_memory_budget == self.search.share:
            self.config.activation_memory_budget = 1.0

    # ---- iterations ----

    def mark(self):
        """An iteration has ended. Returns whether a choice was made at it."""
        if self.chosen:
            self.look_at_errors()
            return False
        asked, frames = self.world.asked(), self.compiled()
        difference, self.asked = asked - (self.asked or 0), asked
        if frames != self.frames or difference == asked:
            self.frames, self.differences = frames, []
            self.world.trim()  # of what compiling took
            return False
        self.differences.append(difference)
        if len(self.differences) < (SAME if len(set(self.differences)) == 1 else VARYING):
            return False
        self.measured(self.world.took())
        return self.chosen

    def measured(self, took):
        tried = self.search.share
        following = self.search.tell(took)
        self.chosen = not following
        if self.search.share is None:
            raise RuntimeError(
                "pleat: recompute: a budget of %.3f GiB cannot work: of %d values of torch's activation_memory_budget "
                "none takes less than %.3f GiB, the smallest that can"
                % (self.budget / GIB, len(self.search.took), gib_above(min(self.search.took.values()))))
        if self.search.share != tried:
            self.again()
        if self.chosen:
            self.errors = self.world.errors()

    def look_at_errors(self):
        """An out-of-memory error that the program survived: half of what was kept."""
        errors = self.world.errors()
        if errors > self.errors and self.lowerings < LOWERINGS:
            self.lowerings += 1
            self.search.share /= 2
            self.again()
            self.world.say("pleat: recompute: out of memory: torch's activation_memory_budget is %g from here on"
                           % self.search.share)
        self.errors = errors

    def text(self):
        return "pleat: recompute: torch.compile's activation_memory_budget is %g: %.3f GiB of %.3f GiB, of %d tried" % (
            self.search.share, self.search.took[self.search.share] / GIB, self.budget / GIB, len(self.search.took))
