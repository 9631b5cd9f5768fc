"""Mutants of the allocators that Pleat is compared with."""

# name, rule, file, what stands there once, what stands there instead, test that notices
MUTANTS = (
    # ---- PyTorch's ----
    ("torch-streams", "a cached block serves its own stream alone",
     "runtime/baselines/torch/caching.c", "if (at->stream == stream && at->small == small)",
     "if (at->small == small)", "runtime_caching"),
    ("torch-best-fit", "native takes the smallest block that holds the request",
     "runtime/baselines/torch/caching.c", "pleat__block *best = pleat__bins_at_least(&owner->free, bytes, 0);",
     "pleat__block *best = pleat__bins_last(&owner->free); best = best && best->bytes >= bytes ? best : NULL;", "runtime_caching"),
    ("torch-split", "native cuts a large block only where more than 1 MiB is left",
     "runtime/baselines/torch/caching.c",
     "return bytes < caching->options.max_split_bytes && rest > PLEAT__SMALL_LIMIT_BYTES;",
     "return bytes < caching->options.max_split_bytes && rest >= PLEAT__ROUND_BYTES;", "runtime_caching"),
    ("torch-tie", "of equal blocks expandable takes the one that cannot grow",
     "runtime/baselines/torch/caching.c", "if (next == NULL || reach(next) >= reach(best))",
     "if (next == NULL || reach(next) > 0)", "runtime_caching"),
    ("torch-divisions", "sizes are rounded up to a part of their own power of two",
     "runtime/baselines/torch/caching.c", "uint64_t floor = 1ull << (63 - __builtin_clzll(bytes));",
     "uint64_t floor = 2ull << (63 - __builtin_clzll(bytes));", "runtime_caching"),
    ("torch-callback", "the program is asked before new memory is taken",
     "runtime/baselines/torch/caching.c", "PLEAT_TRY(ask_and_take(caching, owner, bytes, rounded, &block));",
     "(void)ask_and_take;", "runtime_caching"),
    # ---- GMLake ----
    ("gmlake-reuse", "an idle view of the size is used again",
     "runtime/baselines/gmlake/policy_gmlake.c", "    if (exact == NULL || exact->bytes != size)",
     "    if (size == 0 && exact != NULL)", "runtime_gmlake"),
    ("gmlake-order", "of idle views the least recently used one goes",
     "runtime/baselines/gmlake/gmlake_blocks.c", "        if (at->requested != 0 || pleat__fences_keep(&fences, at->pool->stream))",
     "        if (at == self->oldest || at->requested != 0)", "runtime_gmlake"),
    ("gmlake-limit", "a block under the limit is not stitched",
     "runtime/baselines/gmlake/policy_gmlake.c", "if (block == NULL || block->bytes < limit)",
     "if (block == NULL)", "runtime_gmlake"),
)
