"""Under `pleat estimate`: torch.save and torch.load, of tensors that have no contents.

Of such a tensor a file has its type, size and strides, as of one on the device meta. A file that was there stays as
it is: it may be of a run on a GPU. What is made goes when the process ends, so that no later run goes on from it.
"""

import collections
import functools
import io
import os
import threading

from . import _ends, _stderr

PLACE, MOVED = "_pleat_place", "_pleat_moved"  # of a storage that is loaded
NOTICE = ("pleat estimate: tensors have no contents here: of files that they are saved in one that is there already stays "
          "as it is, another one goes when the program ends")


class Made:
    """Files that were written here, and go at the end where no other has taken their place."""

    def __init__(self):
        self.inodes, self.process, self.is_told = {}, os.getpid(), False
        _ends.at_end(self.remove)

    def tell(self):
        """Once, that tensors without contents are saved."""
        if not self.is_told:
            self.is_told = True
            _stderr.say(NOTICE)

    def may_write(self, path):
        return not os.path.lexists(path) or self.is_own(path)

    def is_own(self, path):
        try:
            return os.stat(path).st_ino == self.inodes[os.path.realpath(path)]
        except (OSError, KeyError):
            return False

    def write(self, path, contents, zeros=0):
        """And so many bytes behind it that are nowhere on the disk."""
        with open(path, "wb") as out:
            out.write(contents)
            out.truncate(len(contents) + zeros)
            self.inodes[os.path.realpath(path)] = os.fstat(out.fileno()).st_ino

    def remove(self):
        for path in self.inodes if os.getpid() == self.process else ():
            if self.is_own(path):
                os.unlink(path)


class State(threading.local):
    def __init__(self):
        self.met = False  # a tensor without contents, by what saves now
        self.place = "cuda"  # where such a tensor comes back to


def device_of(location):
    """Where a tensor goes that was on the GPU, by torch.load's map_location."""
    if callable(location):
        return "cpu"  # As nearly all of them say.
    if isinstance(location, dict):
        location = next((place for one, place in location.items() if str(one).startswith("cuda")), None)
    return "cuda" if location is None else location


def stand(torch, fake_type, made):
    """From now on tensors without contents can be saved, and what is loaded to the GPU has none."""
    state = State()
    save, load = torch.save, torch.load
    utils, serialization = torch._utils, torch.serialization
    rebuild = utils._rebuild_tensor

    def reduce(self, protocol):
        state.met = True
        if getattr(self, "_is_param", False):
            return utils._rebuild_parameter, (self.detach(), self.requires_grad, collections.OrderedDict())
        return utils._rebuild_meta_tensor_no_storage, (self.dtype, tuple(self.size()), self.stride(), self.requires_grad)

    @functools.wraps(save)
    def save_without(obj, f, *arguments, **named):
        whole, state.met = io.BytesIO(), False
        save(obj, whole, *arguments, **named)
        if state.met:
            made.tell()
        if not isinstance(f, (str, os.PathLike)):
            f.write(whole.getvalue())
        elif not state.met:
            with open(f, "wb") as out:
                out.write(whole.getvalue())
        elif made.may_write(f):
            made.write(f, whole.getvalue())

    @functools.wraps(load)
    def load_without(f, map_location=None, *arguments, **named):
        around, state.place = state.place, device_of(map_location)
        try:
            return load(f, map_location, *arguments, **named)
        finally:
            state.place = around

    @functools.wraps(utils._rebuild_meta_tensor_no_storage)
    def rebuild_without(dtype, size, stride, requires_grad):
        with torch.no_grad():
            tensor = torch.empty_strided(size, stride, dtype=dtype, device=state.place).fill_(1)
        return tensor.requires_grad_(requires_grad)

    def restore(storage, location):
        """A storage stays on the host; its tensors go where it would be."""
        if not location.startswith("cuda"):
            return None
        setattr(storage, PLACE, torch.device(location))
        return storage

    @functools.wraps(rebuild)
    def rebuild_there(storage, offset, size, stride):
        held = storage._untyped_storage
        place = getattr(held, PLACE, None)
        if place is None:
            return rebuild(storage, offset, size, stride)
        if not hasattr(held, MOVED):
            count = held.nbytes() // storage.dtype.itemsize
            setattr(held, MOVED, rebuild(storage, 0, (count,), (1,)).to(place))
        return getattr(held, MOVED).as_strided(size, stride, offset)

    fake_type.__reduce_ex__ = reduce
    torch.save = serialization.save = save_without
    torch.load = serialization.load = load_without
    utils._rebuild_meta_tensor_no_storage, utils._rebuild_tensor = rebuild_without, rebuild_there
    serialization.register_package(0, lambda storage: None, restore)
