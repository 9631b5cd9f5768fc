"""vLLM's sleep mode, served by Pleat: a backend as its registry takes it, and the allocator behind its pools.

Installed beside vLLM this is one of its general plugins. Where Pleat serves the process (PLEAT=1, or under
`pleat run`), what vLLM allocates in its memory pools is Pleat's memory with a tag, `--sleep-mode-backend pleat`
pauses it by that tag, and so does the backend `cumem`, which asks the same allocator. Of vLLM's own allocator
`--sleep-mode-offload-cudagraph` is not served. Elsewhere the plugin only makes the name known. Tried with the
modules of vLLM 0.33.0.
"""

import contextlib
import threading

import pleat

NAME = "pleat"
DEFAULT_TAG = "default"


def _several(tags):
    return (tags,) if isinstance(tags, str) else tuple(tags)


class Allocator:
    """What vLLM asks of the allocator of its pools (vllm.device_allocator.MemAllocator)."""

    default_tag = DEFAULT_TAG

    def __init__(self):
        self._tags = []       # in the order in which they were first used
        self._asleep = {}     # tag -> "host" or "discard"
        self._usage = 0       # bytes that were live more at the ends of pools' contexts than at their beginnings
        self._lock = threading.Lock()

    @staticmethod
    def _named(tag):
        return "vllm " + tag

    @contextlib.contextmanager
    def use_memory_pool(self, tag=None):
        """What is allocated inside sleeps by its tag."""
        tag = tag or DEFAULT_TAG
        before = pleat.stats().get("live_bytes", 0)
        with self._lock:
            if tag not in self._tags:
                self._tags.append(tag)
        try:
            with pleat.tag(self._named(tag)):
                yield
        finally:
            with self._lock:
                self._usage += max(0, pleat.stats().get("live_bytes", 0) - before)

    def _pause(self, tag, offload):
        """False: it sleeps already, in another way."""
        with self._lock:
            if tag in self._asleep:
                return self._asleep[tag] == offload
            pleat.pause(offload=offload, tags=self._named(tag))
            self._asleep[tag] = offload
            return True

    def _warn(self, kept):
        if kept:
            import warnings

            warnings.warn("pleat: %s: asleep already, and stays so" % ", ".join(kept), stacklevel=3)

    def sleep(self, offload_tags=None):
        """All tags: those of `offload_tags` are kept in host memory, what the others hold is lost. What is idle goes
        too."""
        kept = _several(DEFAULT_TAG if offload_tags is None else offload_tags)
        with self._lock:
            tags = list(self._tags)
        self._warn([tag for tag in tags if not self._pause(tag, "host" if tag in kept else "discard")])
        pleat.trim()

    def discard(self, tags):
        """What has these tags is lost, and its memory goes."""
        with self._lock:
            known = [tag for tag in self._tags if tag in _several(tags)]
        self._warn([tag for tag in known if not self._pause(tag, "discard")])

    def wake_up(self, tags=None):
        """All that sleeps, or what has one of the tags; only weights and caches can be left asleep."""
        deferrable = ("weights", "kv_cache")
        with self._lock:
            for tag in [tag for tag in self._tags if tag in self._asleep]:
                if tags is None or tag in tags or tag not in deferrable:
                    pleat.resume(tags=self._named(tag))
                    del self._asleep[tag]

    def get_current_usage(self):
        """Bytes that the pools' contexts left allocated; vLLM asks whether there are any."""
        return self._usage

    def release_pools(self):
        """Nothing: there are no pools of torch's to be released before torch ends."""


def _install():
    from vllm.device_allocator import cumem

    allocator = cumem.CuMemAllocator
    if isinstance(allocator.instance, Allocator):
        return
    if allocator.instance is not None:
        raise RuntimeError("pleat: vLLM's own allocator has begun already: plugins are loaded before the first model")
    allocator.instance = Allocator()


def _register():
    try:
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    except ImportError:
        return  # a vLLM before there were backends: its sleep mode asks the allocator
    with contextlib.suppress(ValueError):  # it is registered already: a plugin may be loaded several times
        SleepModeBackendFactory.register_backend(NAME, "pleat._vllm_backend", "Backend")


def register():
    """The entry point: vLLM calls it in each of its processes, maybe several times."""
    _register()
    if pleat.enabled():
        _install()
