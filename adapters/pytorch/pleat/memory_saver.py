"""torch_memory_saver's calls, served by Pleat: for programs that pause memory by them.

    import pleat, pleat.memory_saver
    pleat.enable()
    pleat.memory_saver.install()      # before the first region()

From then on `torch_memory_saver.torch_memory_saver` needs neither its own library nor LD_PRELOAD: region()
marks tensors with a tag, pause() gives the chunks back on which only such tensors lie, and resume() brings them
back at the same addresses. Tried with torch_memory_saver 0.0.10.
"""

import contextlib
import threading

import pleat

HOST, DISCARD = "host", "discard"


class Saver:
    """What torch_memory_saver's singleton asks of its implementation."""

    _is_xpu = False
    _hook_mode = "pleat"

    def __init__(self):
        self._regions = {}  # a region's tag -> the tags that Pleat has for it, each with what becomes of its contents
        self._lock = threading.Lock()

    def _named(self, tag, backup):
        name = "saver %s %s" % (backup, tag)
        with self._lock:
            self._regions.setdefault(tag, {})[name] = backup
        return name

    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup=False, enable_disk_backup=False, cpu_backup_backend=None):
        """What is allocated inside is paused by its tag; without a backup its contents are lost by that."""
        if enable_disk_backup:
            raise NotImplementedError("pleat: memory is kept in host memory (enable_cpu_backup), not on a disk")
        with pleat.tag(self._named(tag, HOST if enable_cpu_backup else DISCARD)):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph, pool, stream, capture_error_mode, **_):
        """A graph, whose private pool stays: it is torch's own memory, which Pleat does not pause."""
        import torch

        with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
            yield

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use=True):
        """What is allocated inside has no tag."""
        with pleat.tag(""):
            yield

    def _chosen(self, tag):
        with self._lock:
            chosen = self._regions.values() if tag is None else [self._regions.get(tag, {})]
            return [pair for names in chosen for pair in names.items()]

    def pause(self, tag=None):
        for name, backup in self._chosen(tag):
            pleat.pause(offload=backup, tags=name)

    def resume(self, tag=None):
        for name, _ in self._chosen(tag):
            pleat.resume(tags=name)

    def get_cpu_backup(self, tensor, zero_copy=False):
        """None: what is kept is not shown."""
        return None


def install():
    """Puts Pleat in the place of torch_memory_saver's own implementation. RuntimeError: it has begun already."""
    from torch_memory_saver import torch_memory_saver

    if not pleat.enabled():
        raise RuntimeError("pleat.memory_saver.install() comes after pleat.enable()")
    if getattr(torch_memory_saver, "_impl", None) is not None:
        raise RuntimeError("torch_memory_saver has begun already: call pleat.memory_saver.install() before its first use")
    torch_memory_saver._impl = Saver()
