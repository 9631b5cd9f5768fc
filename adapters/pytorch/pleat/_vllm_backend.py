"""The sleep-mode backend `pleat`, which vLLM loads when it is chosen; see vllm_sleep.py."""

import pleat
from vllm.device_allocator import get_mem_allocator_instance
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend


# What is not computed again from anything is kept in host memory at every level, weights at the first only.
KEPT = ("runtime", "cudagraph")


class Backend(SleepModeBackend):
    """Communicators, compiled code and graphs stay: addresses do."""

    def suspend(self, level=1):
        self._state = "SUSPENDED"
        get_mem_allocator_instance().sleep(offload_tags=("weights", *KEPT) if level == 1 else KEPT)

    def resume(self, tags=None):
        self._state = "RESUMING"
        get_mem_allocator_instance().wake_up(tags)
        self._state = "RUNNING"

    def discard(self, tags):
        get_mem_allocator_instance().discard(tags)
        self._state = "SUSPENDED"

    @classmethod
    def is_supported(cls):
        return pleat.enabled()

    @classmethod
    def preserves_communicators(cls):
        return True

    @classmethod
    def preserves_compiled_artifacts(cls):
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls):
        return True
