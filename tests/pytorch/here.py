"""Where the tests of the package find it, and what all tests share. A test imports this before those."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "adapters" / "pytorch"
sys.path[:0] = [str(ADAPTER), str(ROOT / "tests"), str(ROOT / "tools"), str(ROOT / "tools" / "workloads")]
sys.dont_write_bytecode = True
