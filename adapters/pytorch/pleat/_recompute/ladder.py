"""What an iteration that was learned says of the memory of others, whose inputs are smaller or larger.

SIZES      An iteration's is how many elements each of its inputs has at most, by the model and the input's name: what a
           model does with one of them may take more than what it does with another, so they are not added up.
SHARE      Memory grows no slower than the inputs. So where none is larger than when it was learned, the largest share of
           an input's elements there, and of what was measured, is above what an iteration takes. Beyond what was
           learned it is the share's square: attention that is not fused grows so.
GRADIENTS  In a microbatch behind the first, those of the ones before are there. Where an input is largest in such
           a one, and was not when it was learned, they come on top.
"""

from collections.abc import Mapping

from .offload import tensors

HEAP = 1.012  # what the heap takes of what is live, at most, where sizes vary within a budget (decision D422)
BEYOND = float(1 << 64)  # a share of which no memory has room
OFFLOAD = "offload"  # as `pleat explain` calls that way


def sizes_of(torch, model, arguments, keywords):
    """The elements of each input that has any: an argument's, or of what a dictionary has under a key."""
    found = {}
    waiting = [((model,), dict(enumerate(arguments), **keywords))]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [((*name, key), one) for key, one in value.items()]
            continue
        count = sum(one.numel() for one in tensors(torch, value))
        if count:
            found[name] = count
    return found


def share_of(sizes, learned):
    """How many times the learned ones others are: beyond all budgets where an input was not among them."""
    return max((count / learned[name] if name in learned else BEYOND for name, count in sizes.items()), default=1.0)


def enlarge(sizes, others):
    """Each input as large as in both. Returns whether one has grown."""
    grown = {name: count for name, count in others.items() if count > sizes.get(name, 0)}
    sizes.update(grown)
    return bool(grown)


class Ladder:
    """What `pleat explain --budget --json` says of a recording. `casts`: bytes of the weights' copies that autocast keeps
    until it ends, whatever the sizes."""

    def __init__(self, told, casts=0):
        self.rungs = told["rungs"]
        self.order = [(rung["block"], rung["way"], rung.get("until")) for rung in self.rungs[1:]]
        self.numbers = {number for number, _, _ in self.order}
        self.blocks = len(self.numbers)
        saved = {block["number"]: block["saved_bytes"] for block in told.get("blocks", ())}
        self.offloaded_bytes = sum(saved[number] for number, way, _ in self.order if way == OFFLOAD)
        self.persistent, self.lasting = told["persistent_bytes"], told["lasting_bytes"] + casts
        self.earlier = told["earlier_bytes"]  # live, of an iteration before
        self.peaks = [(peak["lasting_bytes"], peak["passing_bytes"]) for peak in told["peaks"]]
        planned = [rung["physical_bytes"] / rung["live_bytes"] for rung in self.rungs if rung.get("physical_bytes")]
        self.beyond = max([HEAP] + planned)

    def bytes(self, rung, share, more=0):
        """What a rung takes at most at a size that is so many times the recorded one's, with so many bytes more:
        gradients and the optimizer take as much at any size, and of what grows with the size nothing grows more slowly, and
        nothing faster than by the square."""
        live = self.rungs[rung]["live_bytes"]
        fixed, grown = (min(self.lasting, live), share) if share < 1 else (self.persistent, share**2)
        return (more + fixed + (live - fixed) * grown) * self.beyond

    def all_again(self, share):
        """What it takes with all blocks computed again at such a size where what grows does so in proportion."""
        return max(lasting + passing * share for lasting, passing in self.peaks) * self.beyond

    def least(self, earlier=0):
        """What a plan takes with all blocks computed again; or the heap, of an earlier iteration's so many live bytes."""
        last = self.rungs[-1]
        planned = last.get("physical_bytes") or last["live_bytes"]
        return earlier * HEAP if earlier > planned else planned

    def ways(self, rung):
        """How each block goes that is not kept: number -> (way, the block by whose end it is offloaded)."""
        return {number: (way, until) for number, way, until in self.order[:rung]}

    def cost(self, rung):
        """Nanoseconds of what is computed again, and of what could be."""
        return self.rungs[rung]["ns"], self.rungs[-1]["ns"]


class Learned:
    """An iteration that was learned. `behind`: the sizes of microbatches behind the first; `gradients`: their bytes."""

    def __init__(self, ladder, sizes, behind, gradients):
        self.ladder, self.sizes, self.behind, self.gradients = ladder, sizes, behind, gradients

    def covers(self, sizes, behind=()):
        """Whether no input is larger there, in the first microbatch or behind it."""
        return share_of(sizes, self.sizes) <= 1 and (not behind or share_of(behind, self.behind) <= 1)

    def bytes(self, rung, sizes, behind):
        """What a rung takes at these sizes, at most where none is larger than here."""
        share = share_of(sizes, self.sizes)
        first = self.ladder.bytes(rung, share)
        if not behind:
            return first
        return max(first, min(self.ladder.bytes(rung, share, self.gradients),
                              self.ladder.bytes(rung, share_of(behind, self.behind))))

    def rung(self, budget, sizes, behind):
        """The first rung within the budget; the last one where none is."""
        last = len(self.ladder.rungs) - 1
        fitting = (rung for rung in range(last) if self.bytes(rung, sizes, behind) <= budget)
        return next(fitting, last)


def all_again(learned, sizes):
    """What an iteration with these sizes takes at least with all blocks computed again, by what was learned: as many
    times as large as the input that has grown least; 0 where nothing says it."""
    def grown(one):
        return min(count / one.sizes[name] for name, count in sizes.items())

    return max((one.ladder.all_again(grown(one)) for one in learned if sizes and sizes.keys() == one.sizes.keys()),
               default=0)


def enough(learned, sizes, behind):
    """What is enough for it, if what it takes grows no faster than by the square of its inputs; 0 where nothing says
    it."""
    bytes = min((one.bytes(-1, sizes, behind) for one in learned), default=BEYOND)
    return bytes if bytes < BEYOND else 0


def choose(learned, budget, sizes, behind):
    """Of what was learned the iteration that says most of one with these sizes, and the rung it says: of those that
    cover it the one that costs least, else the one that is nearest."""
    def rank(one):
        rung = one.rung(budget, sizes, behind)
        return max(share_of(sizes, one.sizes), 1), one.ladder.rungs[rung]["ns"], rung

    best = min(learned, key=rank)
    return best.ladder, best.rung(budget, sizes, behind)
