"""libpleat loaded by a program that already runs: ctypes_load.py LIBRARY VERSION.

What is guarded against: a jemalloc inside with initial-exec TLS, which such a load refuses ("cannot
allocate memory in static TLS block"), and one whose symbols take the place of the process's malloc.
"""

import ctypes
import os
import subprocess
import sys
import threading
import unittest

LIBRARY, VERSION = sys.argv[1:3]

MALLOC = ("malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign",
          "malloc_usable_size", "mallinfo2", "mallopt")


class DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def malloc_addresses():
    process = ctypes.CDLL(None)
    return {name: ctypes.cast(getattr(process, name), ctypes.c_void_p).value for name in MALLOC}


def home_of(address):
    info = DlInfo()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return os.path.basename(info.file.decode()) if found else None


BEFORE = malloc_addresses()
# Global: were there a malloc in it, this is how it would be seen.
PLEAT = ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
PLEAT.pleat_version.restype = ctypes.c_char_p
PLEAT.pleat_trace_request_count.argtypes = [ctypes.c_void_p]
PLEAT.pleat_trace_free.argtypes = [ctypes.c_void_p]


def make_trace():
    """Lives in a metadata arena: the jemalloc inside has to work, on this thread too."""
    trace = ctypes.c_void_p()
    result = PLEAT.pleat_trace_new(ctypes.byref(trace))
    requests = PLEAT.pleat_trace_request_count(trace) if result == 0 else None
    PLEAT.pleat_trace_free(trace)
    return result, requests


class CtypesLoad(unittest.TestCase):
    def test_version(self):
        self.assertEqual(PLEAT.pleat_version().decode(), VERSION)

    def test_malloc_is_left_alone(self):
        self.assertEqual(malloc_addresses(), BEFORE)
        for name, address in BEFORE.items():
            self.assertNotIn("pleat", home_of(address), name)

    def test_arenas_work_on_every_thread(self):
        results = []
        threads = [threading.Thread(target=lambda: results.append(make_trace())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        results.append(make_trace())
        self.assertEqual(results, [(0, 0)] * 9)

    def test_only_public_names_are_exported(self):
        table = subprocess.run(["nm", "--dynamic", "--defined-only", "--format=posix", LIBRARY],
                               capture_output=True, text=True, check=True).stdout
        names = [line.split()[0] for line in table.splitlines()]
        self.assertIn("pleat_version", names)
        private = [n for n in names if not n.startswith("pleat_") or n.startswith(("pleat__",
                                                                                  "pleat_je_"))]
        self.assertEqual(private, [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
