"""What Python asks of the shim to trim and pause memory, and settings, without a GPU and without torch: pausing.py."""

import importlib
import sys
import threading
import time
import types
import unittest
from unittest import mock

import here  # first: it knows where the package is
import pleat
import suite


class FakeLibrary:
    """Notes what is asked of the shim."""

    def __init__(self):
        self.calls = []

    def pleat_torch_trim(self, device, keep, given):
        self.calls.append(("trim", device, keep))
        given._obj.value = 7
        return 0

    def pleat_torch_pause(self, device, discard, name):
        self.calls.append(("pause", device, discard, name))
        return 0

    def pleat_torch_resume(self, device, name):
        self.calls.append(("resume", device, name))
        return 0

    def pleat_torch_tag(self, name):
        self.calls.append(("tag", name))
        return 0

    def pleat_torch_limits(self, device, values, name):
        values[0], values[1], values[2], values[3] = 7, 8, 9, 0
        name.value = b"the budget"
        return 0


class Settings(unittest.TestCase):
    def test_what_is_said_stays_and_the_rest_is_added(self):
        from pleat import _plans

        for conf, canary, whole in (("", False, "share:on,keep:on"), ("keep:off", True, "keep:off,canary:on,share:on"),
                                    # The name of a file is no setting.
                                    ("log:/share:on/keep:on", False, "log:/share:on/keep:on,share:on,keep:on")):
            self.assertEqual(_plans.completed(conf, canary, True), whole)
        self.assertEqual(_plans.completed("share:off", False, False), "share:off")


class Pausing(unittest.TestCase):
    def test_memory_is_paused_by_tag_and_device(self):
        library = FakeLibrary()
        with mock.patch.object(pleat, "_library", library), \
                mock.patch.object(pleat, "_used_devices", lambda: [0, 2]), \
                mock.patch.dict(sys.modules, {"torch": mock.MagicMock()}) as modules:
            self.assertEqual(pleat.trim("1GiB"), 14)
            self.assertEqual(library.calls, [("trim", 0, 1 << 30), ("trim", 2, 1 << 30)])
            library.calls.clear()
            pleat.pause("discard", tags=["a", "b"], device=2)
            modules["torch"].cuda.synchronize.assert_called_once_with(2)
            pleat.resume("a")
            pleat.pause()
            self.assertEqual(library.calls, [
                ("pause", 2, True, b"a"), ("pause", 2, True, b"b"), ("resume", 0, b"a"), ("resume", 2, b"a"),
                ("pause", 0, False, b""), ("pause", 2, False, b"")])
            with self.assertRaisesRegex(ValueError, "offload"):
                pleat.pause("disk")
            library.calls.clear()
            with pleat.tag("a"):
                with self.assertRaises(KeyError), pleat.tag("b"):
                    raise KeyError
            self.assertEqual([name for _, name in library.calls], [b"a", b"b", b"a", b""])
            self.assertEqual(pleat.limits(0), {"limit_bytes": 7, "name": "the budget", "process_bytes": 8,
                                               "other_bytes": None, "communication_bytes": None})
        self.assertEqual(pleat.trim(), 0)
        with pleat.tag("nothing is enabled"):
            pass
        with self.assertRaisesRegex(TypeError, "a tag is a text, not 5"), pleat.tag(5):
            pass
        for call in (pleat.pause, pleat.resume, pleat.limits):
            with self.assertRaisesRegex(RuntimeError, "not enabled"):
                call()

    def test_a_pause_that_fails_leaves_nothing_paused(self):
        library = FakeLibrary()
        library.pleat_torch_failure = lambda: b"out of host memory"
        pauses = library.pleat_torch_pause
        library.pleat_torch_pause = lambda device, *more: pauses(device, *more) if device == 0 else 1
        with mock.patch.object(pleat, "_library", library), \
                mock.patch.object(pleat, "_used_devices", lambda: [0, 2]), \
                mock.patch.dict(sys.modules, {"torch": mock.MagicMock()}):
            with self.assertRaisesRegex(RuntimeError, "out of host memory"):
                pleat.pause(tags=["a", "b"])
        self.assertEqual(library.calls, [("pause", 0, False, b"a"), ("pause", 0, False, b"b"),
                                         ("resume", 0, b"a"), ("resume", 0, b"b")])

    def test_torch_memory_savers_calls_are_served(self):
        saver = mock.MagicMock(_impl=None)
        library = FakeLibrary()
        with mock.patch.dict(sys.modules, {"torch_memory_saver": mock.MagicMock(torch_memory_saver=saver),
                                           "torch": mock.MagicMock()}):
            from pleat import memory_saver

            with self.assertRaisesRegex(RuntimeError, "after pleat.enable"):
                memory_saver.install()
            with mock.patch.object(pleat, "_library", library), \
                    mock.patch.object(pleat, "_used_devices", lambda: [0]):
                memory_saver.install()
                with self.assertRaisesRegex(RuntimeError, "begun already"):
                    memory_saver.install()
                with saver._impl.region(tag="weights", enable_cpu_backup=True), saver._impl.disable():
                    pass
                with saver._impl.region(tag="kv_cache"):
                    pass
                self.assertEqual([name for _, name in library.calls],
                                 [b"saver host weights", b"", b"saver host weights", b"",
                                  b"saver discard kv_cache", b""])
                library.calls.clear()
                saver._impl.pause(tag=None)
                saver._impl.resume(tag="kv_cache")
                saver._impl.pause(tag="no such tag")
                self.assertEqual(library.calls, [("pause", 0, False, b"saver host weights"),
                                                 ("pause", 0, True, b"saver discard kv_cache"),
                                                 ("resume", 0, b"saver discard kv_cache")])
                with self.assertRaises(NotImplementedError):
                    with saver._impl.region(tag="x", enable_disk_backup=True):
                        pass

    def test_vllms_sleep_mode_is_served(self):
        library = FakeLibrary()
        vllm = fake_vllm()
        with mock.patch.dict(sys.modules, {**vllm, "torch": mock.MagicMock()}):
            from pleat import vllm_sleep

            factory = vllm["vllm.device_allocator.sleep_mode_backend"].SleepModeBackendFactory
            real = vllm["vllm.device_allocator.cumem"].CuMemAllocator
            vllm_sleep.register()  # Pleat does not serve this process: its name is known, and says so
            self.assertFalse(factory.make("pleat").is_supported())
            self.assertIsNone(real.instance)
            with mock.patch.object(pleat, "_library", library), \
                    mock.patch.object(pleat, "_used_devices", lambda: [0]), \
                    mock.patch.object(pleat, "stats", lambda: {"live_bytes": len(library.calls)}):
                vllm_sleep.register()
                vllm_sleep.register()
                allocator = real.get_instance()
                self.assertEqual(allocator.get_current_usage(), 0)
                for tag in ("weights", "kv_cache", "runtime", None):
                    with allocator.use_memory_pool(tag=tag):
                        pass
                self.assertGreater(allocator.get_current_usage(), 0)
                self.assertEqual([name for _, name in library.calls if name],
                                 [b"vllm weights", b"vllm kv_cache", b"vllm runtime", b"vllm default"])
                backend = factory.make("pleat")
                self.assertTrue(backend.is_supported())
                self.slept_and_woken(library, backend)
                with self.assertWarnsRegex(UserWarning, "weights: asleep already"):
                    backend.suspend(1)
                    backend.discard(("weights",))

    def slept_and_woken(self, library, backend):
        library.calls.clear()
        backend.suspend(1)
        paused = [("pause", 0, offload == b"d", b"vllm " + name) for offload, name in
                  ((b"h", b"weights"), (b"d", b"kv_cache"), (b"h", b"runtime"), (b"d", b"default"))]
        self.assertEqual(library.calls, paused + [("trim", 0, 0)])
        self.assertEqual(backend.state(), "SUSPENDED")
        library.calls.clear()
        backend.resume(["weights"])  # what is neither weights nor a cache comes back with whatever is asked for
        self.assertEqual(library.calls, [("resume", 0, b"vllm " + name) for name in (b"weights", b"runtime", b"default")])
        library.calls.clear()
        backend.resume()
        backend.resume()
        self.assertEqual(library.calls, [("resume", 0, b"vllm kv_cache")])
        self.assertEqual(backend.state(), "RUNNING")
        library.calls.clear()
        backend.discard(("kv_cache",))
        backend.suspend(2)  # the cache is gone already, and is not paused twice
        backend.resume()
        self.assertEqual([call for call in library.calls if call[0] == "pause"],
                         [("pause", 0, True, b"vllm kv_cache"), ("pause", 0, True, b"vllm weights"),
                          ("pause", 0, False, b"vllm runtime"), ("pause", 0, True, b"vllm default")])


def fake_vllm():
    """Modules with what vLLM's registry and its pools ask for, no more."""

    class CuMemAllocator:
        instance = None

        @staticmethod
        def get_instance():
            return CuMemAllocator.instance

    class SleepModeBackend:
        def __init__(self):
            self._state = "RUNNING"

        def state(self):
            return self._state

    class SleepModeBackendFactory:
        known = {}

        @classmethod
        def register_backend(cls, name, module, what):
            if name in cls.known:
                raise ValueError(name)
            cls.known[name] = (module, what)

        @classmethod
        def make(cls, name):
            module, what = cls.known[name]
            return getattr(importlib.import_module(module), what)()

    names = ("vllm", "vllm.device_allocator", "vllm.device_allocator.cumem", "vllm.device_allocator.sleep_mode_backend")
    modules = {name: types.ModuleType(name) for name in names}
    modules[names[1]].get_mem_allocator_instance = CuMemAllocator.get_instance
    modules[names[1]].cumem = modules[names[2]]
    modules[names[2]].CuMemAllocator = CuMemAllocator
    modules[names[3]].SleepModeBackend = SleepModeBackend
    modules[names[3]].SleepModeBackendFactory = SleepModeBackendFactory
    return modules


class Phases(unittest.TestCase):
    def test_threads_may_be_in_phases_at_once(self):
        library, problems, end = mock.Mock(pleat_torch_phase=lambda name: 0), [], time.monotonic() + 2

        def enter():
            try:
                while time.monotonic() < end and not problems:
                    with pleat.phase("a"), pleat.phase("b"):
                        pass
            except RuntimeError as problem:
                problems.append(problem)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, interval)
        with mock.patch.object(pleat, "_library", library):
            threads = [threading.Thread(target=enter) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(problems, [])


if __name__ == "__main__":
    suite.main()
