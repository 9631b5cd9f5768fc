"""What tools/wheel and tools/check-torch are made of, beside Pleat's package for torch, of this tree."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "adapters/pytorch"))
