"""Optimizers' steps as the ends of iterations.

On each device one optimizer's steps are marks: the first one's that has parameters there and stepped,
until it is gone, or another one has stepped MOST_STEPS times since its last and so goes on alone. Devices
without an optimizer of their own (activations of frozen layers, parameters that are kept on the CPU) are
marked by the first of all. An iteration may step more than once: an optimizer that is given its parameters
part by part (as ZeRO does) marks when it has a part again, and a step behind which nothing was asked for,
as where a class's step calls that of its parent, is none. Nor is one where the program has said itself,
since the step before, that an iteration ends.
"""

import weakref

MOST_STEPS = 64
MOST_PARTS = 256  # an optimizer with more of them gets others in each step
ALL = -1  # as a device: those that have no optimizer of their own


def part_of(optimizer):
    """What tells the parameters that an optimizer has now from those that it had before."""
    for group in optimizer.param_groups:
        if group["params"]:
            return id(group["params"][0])
    return None


def devices_of(optimizer):
    """Numbers of the GPUs that an optimizer has parameters on, by the first one of each group: of a group
    on several the others are nobody's, as is one that a parameter's class does not say."""
    devices = [group["params"][0].device for group in optimizer.param_groups if group["params"]]
    return {device.index for device in devices if device.type == "cuda" and device.index is not None}


class Turns:
    """Whose steps are marks on one device. `mark` says that an iteration ends there, `taken` returns the
    bytes that were ever asked for there."""

    def __init__(self, mark, taken, told=False):
        self.mark = mark
        self.taken = taken
        self.first = None
        self.others = weakref.WeakKeyDictionary()  # optimizers -> steps since the first one's last
        self.parts = set()  # stepped since the last mark
        self.in_parts = True  # that another part steps says nothing
        self.marked_at = None  # bytes
        self.told = told  # by the program, since the last step that would be a mark

    def step(self, optimizer):
        if self.first is None:
            self.first = weakref.ref(optimizer)
        if self.first() is optimizer:
            self.others.clear()
            self.stepped(part_of(optimizer))
            return
        self.others[optimizer] = self.others.get(optimizer, 0) + 1
        if self.first() is None or self.others[optimizer] >= MOST_STEPS:
            self.first = weakref.ref(optimizer)
            self.others.clear()
            self.parts.clear()

    def stepped(self, part):
        if self.in_parts and self.parts and part not in self.parts:
            self.parts.add(part)
            self.in_parts = len(self.parts) <= MOST_PARTS
            return
        now = self.taken()
        if now == self.marked_at:
            return
        self.marked_at, self.parts = now, {part}
        told, self.told = self.told, False
        if not told:
            self.mark()


class Steps:
    """`mark` and `taken` are asked of one device by its number, or of ALL: then `taken` is of all that
    there are, and `mark` is given the devices to be left out, too."""

    def __init__(self, mark, taken):
        self.mark = mark
        self.taken = taken
        self.own = {}  # device -> its Turns
        self.rest = Turns(lambda: mark(ALL, set(self.own)), lambda: taken(ALL))

    def __call__(self, optimizer, *_):
        """The hook: an optimizer has stepped."""
        # One without parameters on a GPU may be any GPU's: what it updates is copied there.
        for device in devices_of(optimizer) or list(self.own):
            self.turns(device).step(optimizer)
        self.rest.step(optimizer)

    def turns(self, device):
        if device not in self.own:
            self.own[device] = Turns(lambda: self.mark(device, set()), lambda: self.taken(device),
                                     self.rest.told)
        return self.own[device]

    def tell(self, device):
        """The program has said that an iteration ends on a device, or on ALL."""
        for own, turns in self.own.items():
            turns.told |= device in (ALL, own)
        self.rest.told = True
