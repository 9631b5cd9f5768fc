"""What of a model is computed again in backward, so that training stays within a budget: --recompute auto.

BLOCKS     A model's repeated parts: transformers' layers that can be checkpointed, which ask at each call
           what to do; else modules of one class side by side in a ModuleList or Sequential, the outermost
           ones. Their class's forward is replaced by one that asks; FSDP's and other hooks lie around it.
LEARNING   In the first two iterations every block is computed again, which takes the least memory, and the
           budget does not hold yet, so that one that cannot work is refused with one that can, by the larger of
           the two. Both are recorded under the phases "block.N" and "block.N.again", the second's forwards are
           timed, and so is fused attention in them, under "block.N.attention". What would be live, and
           what a plan would take, if fewer blocks were computed again follows from that recording alone
           (`pleat explain --budget`, tools/analysis/recompute.h).
CHOICE     A ladder of rungs, a block's way changed at each, and for each iteration the first rung that
           fits at the sizes that its inputs have (ladder.py). A block is kept, computed again, computed again
           but for its attention (attention.py), or offloaded (offload.py); one that was not there when the
           iteration was learned is computed again. An iteration with a larger input, or another, is learned
           in its turn, as long as all are recorded; after that its share is reckoned. An out-of-memory
           error that the program survives leads to the next rung; where there is none it says the budget that
           it takes.
MODELS     They are looked for in the first iterations, and again when one passes in which none is called that is
           known: another has taken its place.
LEFT ALONE Blocks whose buffers (BatchNorm's), weights or own tensors change in forward, which the first one shows, blocks
           that write into tensors of what they are called with, of which the first one's backward is an error, blocks with
           a cache, what TorchScript compiled, whatever the program checkpoints itself, what runs within torch.func's
           transforms or with other weights than a module's own (swapped.py), and everything without gradients. Of what
           torch.compile compiles torch's own budget is chosen (compiled.py), where no other model has blocks.

Torch's random numbers, autocast and what a forward closes over are torch.utils.checkpoint's matter (not reentrant);
Python's and numpy's random numbers, attributes, and what is in the lists, dicts and objects that a block is called with are
put back (state.py).
"""

from .recompute import Recompute
from .world import World

__all__ = ["Recompute", "World"]
