"""Settings of jobs that were recorded on a GPU: hyperparameters only, for honesty.py.

All seven share one script's block: LayerNorm, one projection for queries, keys and values, biases,
bf16 weights with fp32 masters and gradients (three fp32 copies with the accumulated ones).
"""

BLOCK = {
    "norm": "layer",
    "bias": True,
    "fused": True,
    "positions": 0,
    "rotary": False,
    "final_norm": False,
    "tied": False,
    "precision": "master",
    "copies": 3,
    "recompute": "none",
    "optimizer": "adam",
    "optimizer_way": "foreach",
    "clip": True,
    "iterations": 3,
    "virtual_stages": 1,
    "depth": 1,
    "dropout": 0.0,
}

GPT2 = dict(
    BLOCK,
    family="decoder",
    layers=24,
    hidden=1024,
    heads=16,
    inner=4096,
    vocabulary=50304,
    mlp="gelu",
    dropout=0.1,
    samples=24,
    length=1024,
    loss=False,
)
LLAMA = dict(
    BLOCK,
    family="decoder",
    layers=12,
    hidden=4096,
    heads=32,
    inner=11008,
    vocabulary=32000,
    mlp="swiglu",
    length=2048,
)
MOE = dict(
    BLOCK,
    family="moe",
    hidden=2048,
    heads=16,
    inner=5632,
    expert_inner=1408,
    shared_inner=5632,
    routing="sliced",
    vocabulary=151936,
    mlp="swiglu",
    length=2048,
)

LIKES = {
    "gpt2-vpp": dict(GPT2, virtual_stages=2, depth=4, microbatches=8),
    "gpt2-vpp-recompute": dict(
        GPT2, virtual_stages=3, depth=2, microbatches=6, recompute="layers"
    ),
    "llama-vpp": dict(
        LLAMA, virtual_stages=3, depth=4, microbatches=8, samples=2, loss=False
    ),
}
