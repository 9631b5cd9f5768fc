"""torch, or None where this Python has none: `from torch_or_none import torch`."""

try:
    import torch
except ImportError:
    torch = None
