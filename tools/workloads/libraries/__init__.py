"""Jobs of real libraries, each drawn from a seed; one file a family.

A family's function of the job's name makes it: from the options, of which seed, device, tiny and
iterations count. Importing this package imports no library.
"""

import importlib

# job -> the file that it is in
JOBS = {
    "llama": "decoders",
    "qwen3": "decoders",
    "evaluation": "decoders",
    "qwen3_moe": "experts",
    "pipeline_rank": "experts",
    "t5": "translation",
    "whisper": "speech",
    "wav2vec2": "speech",
    "vit": "images",
    "convolutions": "images",
    "retinanet": "images",
    "unet": "diffusion",
    "lora": "adapters",
    "rollouts": "rollouts",
    "graphs": "graphs",
    "fsdp2": "sharded",
}
SEVERAL_GPUS = ("fsdp2",)
# Sums over a graph's edges have no deterministic kernel but one that takes an index for each number.
ADDS_IN_ANY_ORDER = ("graphs",)
SKIPPED = 77  # the exit code where a library is not there


def load(name):
    """The function that makes the job; ImportError where its library is missing."""
    return getattr(importlib.import_module("libraries." + JOBS[name]), name)
