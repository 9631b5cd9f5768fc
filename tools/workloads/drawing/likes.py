"""Settings of jobs that were recorded on a GPU: hyperparameters only, for honesty.py.

All seven share one script's block: LayerNorm, one projection for queries, keys and values, biases,
bf16 weights with fp32 masters and gradients the gradients of all microbatches summed in fp32.
"""

BLOCK = {
    "final_norm": False,
    "weights_in_groups": True,
    "reentrant": True,
    "keeps_input": True,
    "iterations": 3,
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
    skew=0.05,
)

# tools/workloads/gpt2.py --recompute, as it was recorded in gpt2-vpp-recompute.pickle.gz beside it.
BUNDLED = {
    "family": "decoder",
    "layers": 24,
    "hidden": 1024,
    "heads": 16,
    "inner": 4096,
    "vocabulary": 50304,
    "mlp": "gelu",
    "positions": 1024,
    "tied": True,
    "holds_logits": True,
    "dropout": 0.1,
    "embedding_dropout": 0.1,
    "precision": "autocast",
    "recompute": "layers",
    "virtual_stages": 4,
    "depth": 2,
    "microbatches": 4,
    "samples": 4,
    "length": 1024,
    "iterations": 4,
}

LIKES = {
    "bundled": BUNDLED,
    "gpt2-vpp": dict(GPT2, virtual_stages=2, depth=4, microbatches=8),
    "gpt2-vpp-recompute": dict(GPT2, virtual_stages=3, depth=2, microbatches=6, recompute="layers"),
    "llama-vpp": dict(LLAMA, virtual_stages=3, depth=4, microbatches=8, samples=2, loss=False),
    "moe": dict(
        MOE,
        layers=8,
        experts=32,
        chosen=2,
        virtual_stages=2,
        depth=2,
        microbatches=4,
        samples=4,
        loss=False,
    ),
    "moe-recompute": dict(
        MOE, layers=5, experts=64, chosen=6, microbatches=3, samples=6, recompute="layers"
    ),
    "llama-zero-recompute": dict(
        LLAMA,
        layers=12,
        microbatches=4,
        samples=6,
        recompute="layers",
        world=8,
        sharding="scatter",
        gathers=True,
        clip=False,
    ),
    "sft-varlen": dict(
        LLAMA,
        layers=10,
        rank=16,
        lora_dropout=0.1,
        lora_scaled=False,
        norms_trained=True,
        family="lora",
        microbatches=2,
        samples=8,
        lora_item=2,
        # What its data had: the peak is the longest's.
        lengths=[396, 1062, 1488, 1422, 1362, 288, 582, 372, 948, 1356, 882, 912],
        recompute="layers",
        iterations=12,
    ),
}
