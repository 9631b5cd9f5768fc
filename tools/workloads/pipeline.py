"""The order in which one rank of a pipeline works through an iteration.

The model is cut into virtual stages; a rank of a pipeline of `depth` ranks takes the microbatches in
groups of `depth`, each group through every stage it holds, and starts backward as late as the ranks
behind it force it to (the interleaved one-forward-one-backward schedule of Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters", SC '21, section 2.2). Everything the
rank has gone forward through and not yet back is live: that is where the memory goes.
"""

FORWARD = "F"
BACKWARD = "B"


def steps(microbatches, stages, depth):
    """The (microbatch, stage) pairs in forward order."""
    return [
        (microbatch, stage)
        for group in range(0, microbatches, depth)
        for stage in range(stages)
        for microbatch in range(group, group + depth)
    ]


def interleaved(microbatches, stages, depth, rank=0):
    """All steps of one iteration as (FORWARD or BACKWARD, microbatch, stage).

    A step never comes before one it depends on, so one process that holds all stages can run the
    list as it is. `microbatches` must be a multiple of `depth`.
    """
    if min(microbatches, stages, depth) < 1 or not 0 <= rank < depth:
        raise ValueError("microbatches, stages and depth are at least 1, and rank is below depth")
    if microbatches % depth:
        raise ValueError(
            "%d microbatches are no multiple of the pipeline's depth, %d" % (microbatches, depth)
        )
    forward = steps(microbatches, stages, depth)
    # Backward takes each group's stages from the last to the first.
    backward = [(microbatch, stages - 1 - stage) for microbatch, stage in forward]
    # This rank goes forward until the last stage's first gradient can have come back to it.
    warmup = min(len(forward), 2 * (depth - rank - 1) + (stages - 1) * depth)
    order = [(FORWARD,) + step for step in forward[:warmup]]
    for ahead, behind in zip(forward[warmup:], backward):
        order += [(FORWARD,) + ahead, (BACKWARD,) + behind]
    order += [(BACKWARD,) + step for step in backward[len(forward) - warmup :]]
    return order


def plain(microbatches, depth, rank=0):
    """One-forward-one-backward with one stage a rank: as interleaved(), but a rank is only as many
    microbatches ahead as there are ranks behind it (the same paper, figure 4)."""
    if min(microbatches, depth) < 1 or not 0 <= rank < depth:
        raise ValueError("microbatches and depth are at least 1, and rank is below depth")
    warmup = min(microbatches, depth - rank - 1)
    order = [(FORWARD, microbatch, 0) for microbatch in range(warmup)]
    for behind, ahead in enumerate(range(warmup, microbatches)):
        order += [(FORWARD, ahead, 0), (BACKWARD, behind, 0)]
    order += [(BACKWARD, microbatch, 0) for microbatch in range(microbatches - warmup, microbatches)]
    return order


def order(microbatches, stages, depth):
    """The first rank's order: interleaved where it holds several stages."""
    if stages > 1:
        return interleaved(microbatches, stages, depth)
    return plain(microbatches, depth)
