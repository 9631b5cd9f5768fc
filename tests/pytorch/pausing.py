"""What Python asks of the shim to trim and pause memory, without a GPU and without torch: pausing.py."""

import pathlib
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "adapters" / "pytorch"), str(ROOT / "tests")]
sys.dont_write_bytecode = True
import pleat  # noqa: E402
import suite  # noqa: E402


class FakeLibrary:
    """Notes what is asked of the shim."""

    def __init__(self):
        self.calls = []

    def pleat_torch_trim(self, device, keep, given):
        self.calls.append(("trim", device, keep))
        given._obj.value = 7
        return 0

    def pleat_torch_pause(self, device, discard, name, none):
        self.calls.append(("pause", device, discard, name))
        return 0

    def pleat_torch_resume(self, device, name, none):
        self.calls.append(("resume", device, name))
        return 0

    def pleat_torch_tag(self, name):
        self.calls.append(("tag", name))
        return 0

    def pleat_torch_limits(self, device, values, name):
        values[0], values[1], values[2], values[3] = 7, 8, 9, 0
        name.value = b"the budget"
        return 0


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
                                               "other_bytes": None})
        self.assertEqual(pleat.trim(), 0)
        with pleat.tag("nothing is enabled"):
            pass
        for call in (pleat.pause, pleat.resume, pleat.limits):
            with self.assertRaisesRegex(RuntimeError, "not enabled"):
                call()

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


if __name__ == "__main__":
    suite.main()
