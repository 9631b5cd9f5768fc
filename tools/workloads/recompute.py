#!/usr/bin/env python3
"""Recomputation within a budget beside what else there is, on a GPU under Pleat:

    recompute.py --json RESULTS.json                          # all of it: some seven minutes on an H200
    recompute.py --models llama --lengths drawn --budgets 0.6

Models of transformers with random weights are trained alone, with all layers checkpointed (full), with all
but products' and attention's results computed again (selective), and with pleat.enable(recompute="auto")
within each budget, a share of what the model takes alone. Each runs in a process of its own.

A row: the most bytes of the device in use where iterations end (memory is kept between them), by the driver's
count less what is there beside Pleat's memory after the first iterations; seconds of an iteration at the mean
of the measured ones; whether losses are those alone, bit by bit; and the choice. Then what must hold and does
not; exit status 1 if anything.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS, LENGTHS, BUDGETS = ("llama", "qwen3moe", "vit", "t5"), ("fixed", "drawn"), (0.8, 0.6, 0.45)
WARM, MEASURED = 10, 8  # iterations: the longest comes twice before, and what learns has learned by then
SHARES = (1.0, 0.35, 0.6, 0.25, 0.85, 0.5, 0.3, 0.7)  # of the largest length, where lengths are drawn
LONGEST = 2048
GIB = 1 << 30


def model_of(name):
    """A model of transformers, and what makes a batch of it at a length."""
    import torch
    import transformers as hub

    wide = dict(hidden_size=1536, num_attention_heads=12, vocab_size=32000, use_cache=False,
                max_position_embeddings=LONGEST)

    def texts(rows):
        def batch(length):
            tokens = torch.randint(0, 32000, (rows, length), device="cuda")
            return dict(input_ids=tokens, labels=tokens)

        return batch

    def images(length):
        rows = max(8, 96 * length // LONGEST)
        return dict(pixel_values=torch.randn(rows, 3, 224, 224, device="cuda"),
                    labels=torch.zeros(rows, dtype=torch.long, device="cuda"))

    def pairs(length):
        # Its attention's biases take the square of the length.
        tokens = torch.randint(0, 32000, (4, length // 2), device="cuda")
        return dict(input_ids=tokens, labels=tokens[:, : length // 4])

    makers = {
        "llama": lambda: (hub.LlamaForCausalLM(hub.LlamaConfig(
            intermediate_size=4096, num_hidden_layers=16, num_key_value_heads=4, **wide)), texts(6)),
        "qwen3moe": lambda: (hub.Qwen3MoeForCausalLM(hub.Qwen3MoeConfig(
            intermediate_size=4096, moe_intermediate_size=768, num_hidden_layers=10, num_key_value_heads=4,
            head_dim=128, num_experts=8, num_experts_per_tok=2, **wide)), texts(4)),
        "vit": lambda: (hub.ViTForImageClassification(hub.ViTConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=20, num_attention_heads=16)), images),
        "t5": lambda: (hub.T5ForConditionalGeneration(hub.T5Config(
            d_model=1024, d_ff=4096, num_layers=8, num_heads=16, d_kv=64, vocab_size=32000, use_cache=False,
            decoder_start_token_id=0)), pairs),
    }
    torch.manual_seed(7)
    with torch.device("cuda"):
        model, batch = makers[name]()
    return model.to(torch.bfloat16).train(), batch


def keep_some(context, op, *arguments, **keywords):
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    aten = torch.ops.aten
    kept = (aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default, aten._scaled_dot_product_cudnn_attention.default)
    return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_all(model, selective):
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    keywords = {"context_fn": functools.partial(create_selective_checkpoint_contexts, keep_some)} if selective else {}
    for layer in model.modules():
        if hasattr(layer, "gradient_checkpointing") and any(
            kind.__name__ == "GradientCheckpointingLayer" for kind in type(layer).__mro__
        ):
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False, **keywords)


def used(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def train(name, lengths, way, share, budget):
    """A row: one way to train, in this process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    sys.path.insert(0, str(ROOT / "adapters" / "pytorch"))
    import pleat

    choosing, said = [], []
    if way == "auto":
        pleat.enable(recompute="auto", budget=budget)
        world = pleat._recomputing.world
        ladder = world.ladder

        def timed(*asked):
            began = time.monotonic()
            answer = ladder(*asked)
            choosing.append(time.monotonic() - began)
            return answer

        world.say, world.ladder = said.append, timed
    else:
        pleat.enable(conf="keep:off")
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    model, batch = model_of(name)
    torch.cuda.empty_cache()  # what making it took
    if way in ("full", "selective"):
        checkpoint_all(model, way == "selective")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, seconds, most, rest = [], [], 0, 0
    torch.manual_seed(11)
    for i in range(WARM + MEASURED):
        part = SHARES[i % len(SHARES)] if lengths == "drawn" else 1.0
        inputs = batch(int(LONGEST * part) // 64 * 64)
        torch.cuda.synchronize()
        began = time.monotonic()
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        passed = time.monotonic() - began
        losses.append(loss.item())
        del loss, inputs
        if i < WARM:
            # The context and libraries, whose kernels are loaded by now.
            rest = used(torch) - pleat.stats()["physical_bytes"]
            continue
        seconds.append(passed)
        most = max(most, used(torch) - rest)
    row = dict(used_bytes=most, physical_bytes=pleat.stats()["physical_bytes"], losses=losses, said=said,
               seconds=sum(seconds) / len(seconds), each=seconds)
    if way == "auto":
        row.update(choice_seconds=max(choosing, default=None), again=len(pleat._recomputing.again),
                   blocks=pleat._recomputing.count)
    return row


def work(told):
    """In a process of its own: the row that was asked for, on standard output."""
    asked = json.loads(told)
    try:
        row = train(**asked)
    except RuntimeError as problem:  # torch's out of memory is one
        row = {"error": str(problem) or type(problem).__name__}
    print("ROW " + json.dumps({**asked, **row}), flush=True)


def run(**asked):
    done = subprocess.run([sys.executable, __file__, "--work", json.dumps(asked)], stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ROW ")]
    return rows[0] if rows else {**asked, "error": "the process ended with %d" % done.returncode}


def run_all(options):
    rows = []
    for model in options.models:
        for lengths in options.lengths:
            asked = dict(name=model, lengths=lengths, share=0, budget=0)
            ways = [run(way=way, **asked) for way in ("alone", "full", "selective")]
            rows += ways
            for share in options.budgets if "error" not in ways[0] else []:
                budget = int(share * ways[0]["used_bytes"])
                rows.append(run(way="auto", **{**asked, "share": share, "budget": budget}))
    return rows


def judge(rows):
    """What must hold, and does not."""
    wrong = []
    by = {(r["name"], r["lengths"], r["way"], r["share"]): r for r in rows}
    for row in rows:
        name = "%s, %s, %s at %g" % (row["name"], row["lengths"], row["way"], row["share"])
        if row.get("error"):
            refused = row["way"] == "auto" and "cannot work" in row["error"]
            wrong += [] if refused else ["%s: %s" % (name, row["error"].splitlines()[0])]
            continue
        if row["way"] != "auto":
            continue
        alone, full = (by.get((row["name"], row["lengths"], way, 0), {}) for way in ("alone", "full"))
        if row["used_bytes"] > row["budget"]:
            wrong.append("%s: %.3f GiB in use, the budget is %.3f" % (
                name, row["used_bytes"] / GIB, row["budget"] / GIB))
        if row["losses"] != alone.get("losses"):
            wrong.append("%s: losses are not those without" % name)
        gain = 0.12 if row["lengths"] == "drawn" and row["share"] >= 0.6 else 0
        if full.get("seconds") and row["seconds"] > (1 - gain) * full["seconds"]:
            wrong.append("%s: %.4f s an iteration, full checkpointing %.4f" % (name, row["seconds"], full["seconds"]))
        if row["choice_seconds"] is None or row["choice_seconds"] > 2:
            wrong.append("%s: the choice took %s s" % (name, row["choice_seconds"]))
    return wrong


def show(rows):
    print("%-9s %-6s %-9s %6s %9s %9s %8s %7s %s" % (
        "model", "length", "way", "budget", "used GiB", "s/iter", "losses", "again", "choice s"))
    alone = {(r["name"], r["lengths"]): r.get("losses") for r in rows if r["way"] == "alone"}
    for row in rows:
        if row.get("error"):
            print("%-9s %-6s %-9s %6g %s" % (
                row["name"], row["lengths"], row["way"], row["share"], row["error"].splitlines()[0]))
            continue
        same = "same" if row["losses"] == alone.get((row["name"], row["lengths"])) else "differ"
        again = "%d/%d" % (row["again"], row["blocks"]) if row["way"] == "auto" else ""
        print("%-9s %-6s %-9s %6g %9.3f %9.4f %8s %7s %s" % (
            row["name"], row["lengths"], row["way"], row["share"], row["used_bytes"] / GIB, row["seconds"], same, again,
            "%.2f" % row["choice_seconds"] if row.get("choice_seconds") is not None else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="shares of the peak alone")
    parser.add_argument("--json", metavar="FILE", help="write all rows there")
    parser.add_argument("--work", metavar="ROW", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work)
    rows = run_all(options)
    show(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    wrong = judge(rows)
    print("\n".join(["does not hold: " + one for one in wrong] or ["all of it holds"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
