#!/usr/bin/env python3
"""Recomputation within a budget beside what else there is, on a GPU under Pleat:

    recompute.py --json ROWS.jsonl                            # all of it: some seven minutes on an H100
    recompute.py --models llama --lengths drawn --json ROWS.jsonl    # a part of it: one minute
    recompute.py --show ROWS.jsonl MORE.jsonl                 # the table of parts

Models of transformers with random weights are trained

    alone      as they are; twice, to see whether losses are the same bit by bit
    full       with all layers checkpointed
    selective  with all but products' and attention's results computed again, by torch's own policies
    auto       with pleat.enable(recompute="auto") within each budget, a share of what the model takes alone
    offload    the same, but that what blocks save may be offloaded
    again      the same, but that blocks are only computed again: never without attention
    compile    by torch.compile, with the budget as its activation_memory_budget
    closed     by torch.compile and pleat.enable(recompute="auto")

Each runs in a process of its own, a fork of this one, which imports what takes long and never uses the GPU. Its
row is written when it is there: a part that is cut off has lost only the row at work.

All use kernels that give the same bits in each run, where torch has them; of a model for which it does not, or with
--fast, which takes the kernels that users have, losses are not compared, and the row says so.

A row: the most bytes of the device in use where iterations end (memory is kept between them), by the driver's
count less what is there beside Pleat's memory after the first iterations; seconds of an iteration at the mean
of the measured ones, and how many of them it waited for memory verbs; whether losses are those alone, bit by bit; and
the choice. Then what must hold and does not; exit status 1 if anything.
"""

import argparse
import functools
import ctypes
import json
import multiprocessing
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS, LENGTHS, BUDGETS = ("llama", "qwen3moe", "vit", "t5"), ("fixed", "drawn"), (0.8, 0.6, 0.45)
WAYS = ("alone", "full", "selective", "auto", "offload", "again", "compile", "closed")
WITHOUT = {"again": {"attention_ns": []}}  # costs that are not told
CLASSES = ("LlamaForCausalLM", "Qwen3MoeForCausalLM", "ViTForImageClassification", "T5ForConditionalGeneration")
CHOSEN = ("auto", "offload", "again")  # ways that choose among a model's blocks
BY_DEFAULT = WAYS[:4]
BUDGETED = WAYS[3:]
MOST = 80  # of the first, while torch's shares are tried
WARM, MEASURED = 10, 8  # iterations: the longest comes twice before, and what learns has learned by then
SHARES = (1.0, 0.35, 0.6, 0.25, 0.85, 0.5, 0.3, 0.7)  # of the largest length, where lengths are drawn
LONGEST = 2048
GIB = 1 << 30
NOT_DETERMINISTIC = "does not have a deterministic implementation"  # torch's words


def models():
    """transformers, with the classes below imported."""
    import transformers as hub

    for name in CLASSES:
        getattr(hub, name)
    return hub


def model_of(name):
    """A model of transformers, and what makes a batch of it at a length."""
    import torch

    hub = models()
    words = 32000
    wide = dict(hidden_size=1536, num_attention_heads=12, vocab_size=words, use_cache=False,
                max_position_embeddings=LONGEST, intermediate_size=4096)

    def texts(rows):
        def batch(length):
            tokens = torch.randint(0, words, (rows, length), device="cuda")
            return dict(input_ids=tokens, labels=tokens)

        return batch

    def images(length):
        rows = max(8, 96 * length // LONGEST)
        return dict(pixel_values=torch.randn(rows, 3, 224, 224, device="cuda"),
                    labels=torch.randint(0, 2, (rows,), device="cuda"))

    def pairs(length):
        # Its attention's biases take the square of the length.
        tokens = torch.randint(0, words, (4, length // 2), device="cuda")
        return dict(input_ids=tokens, labels=tokens[:, : length // 4].contiguous())

    makers = {
        "llama": lambda: (hub.LlamaForCausalLM(hub.LlamaConfig(
            num_hidden_layers=16, num_key_value_heads=4, **wide)), texts(6)),
        "qwen3moe": lambda: (hub.Qwen3MoeForCausalLM(hub.Qwen3MoeConfig(
            moe_intermediate_size=768, num_hidden_layers=10, num_key_value_heads=4, head_dim=128, num_experts=8,
            num_experts_per_tok=2, **wide)), texts(4)),
        "vit": lambda: (hub.ViTForImageClassification(hub.ViTConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=20, num_attention_heads=16, image_size=224,
            hidden_dropout_prob=0.0)), images),
        "t5": lambda: (hub.T5ForConditionalGeneration(hub.T5Config(
            d_model=1024, d_ff=4096, num_layers=8, num_heads=16, d_kv=64, vocab_size=words, use_cache=False,
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


class Gpu:
    """A GPU under Pleat."""

    def __init__(self, way, budget):
        sys.path.insert(0, str(ROOT / "adapters" / "pytorch"))
        import pleat

        self.pleat, self.way, self.most, self.rest = pleat, way, 0, 0
        self.before, self.waited = {}, []
        self.choosing, self.said = [], []
        if way not in CHOSEN + ("closed",):
            pleat.enable(conf="keep:off")
        else:
            pleat.enable(recompute="offload" if way == "offload" else "auto", budget=budget)
            self.listen(pleat._recomputing.world)

    def listen(self, world):
        """To how long a choice takes, and what is said of it."""
        ladder, without = world.ladder, WITHOUT.get(self.way, {})

        def timed(costs, budget):
            began = time.monotonic()
            answer = ladder(dict(costs, **without), budget)
            self.choosing.append(time.monotonic() - began)
            return answer

        world.say, world.ladder = self.said.append, timed

    def ready(self, torch):
        """Behind the model's making."""
        torch.cuda.empty_cache()

    def now(self, torch):
        torch.cuda.synchronize()
        return time.monotonic()

    def iterated(self, torch, number):
        """Returns whether the iteration is one that is measured."""
        before, self.before = self.before, self.pleat.stats()
        # The driver's calls that it waited for, and how long.
        counts = [self.before[name] - before.get(name, 0) for name in ("map_waits", "driver_calls", "waited_ns")]
        if number < WARM or (self.way == "closed" and not self.pleat._recomputing.compiled.chosen and number < MOST):
            # The context and libraries, whose kernels are loaded by now.
            self.rest = used(torch) - self.pleat.stats()["physical_bytes"]
            return False
        self.most = max(self.most, used(torch) - self.rest)
        self.waited.append(counts)
        return True

    def row(self):
        row = dict(used_bytes=self.most, physical_bytes=self.pleat.stats()["physical_bytes"], said=self.said,
                   waited=self.waited)
        if self.way in CHOSEN:
            made = self.pleat._recomputing
            row.update(choice_seconds=max(self.choosing, default=None), blocks=made.count, ways=ways_of(made))
        return row


def ways_of(made):
    """How many blocks are computed again, all but attention, and offloaded."""
    ways = [way for way, _ in made.ways.values()]
    return [ways.count(way) for way in ("again", "attention", "offload")]


def prepare(model, way, share):
    """The model as a way wants it."""
    import torch

    if way in ("full", "selective"):
        checkpoint_all(model, way == "selective")
    if way == "compile":
        import torch._functorch.config

        torch._functorch.config.activation_memory_budget = share
    return torch.compile(model) if way in ("compile", "closed") else model


def be_deterministic(torch):
    """Kernels that give the same bits in each run, or an error. Only so, rather than with a warning, are
    FlashAttention's backward and others' deterministic."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would be timed
    histogram = torch.histc

    def histc(*arguments, **keywords):
        # Of whole numbers, as experts' tokens are counted, sums are the same in any order.
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            return histogram(*arguments, **keywords)
        finally:
            torch.use_deterministic_algorithms(True)

    torch.histc = histc


def train(name, lengths, way, share, budget, again=0, fast=False):
    """A row: one way to train, in this process."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = Gpu(way, budget)
    import torch

    if not fast:
        be_deterministic(torch)
    model, batch = model_of(name)
    device.ready(torch)
    model = prepare(model, way, share)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses, seconds = [], []
    torch.manual_seed(11)
    try:
        iterate(torch, device, lengths, model, batch, optimizer, losses, seconds)
    except RuntimeError as problem:  # torch's out of memory is one
        return {"error": str(problem) or type(problem).__name__, "said": device.said, "iterations": len(losses)}
    return dict(device.row(), losses=losses, seconds=sum(seconds) / len(seconds), each=seconds)


def iterate(torch, device, lengths, model, batch, optimizer, losses, seconds):
    """Fills in the loss of each iteration, and the seconds of the measured ones."""
    i = 0
    while len(seconds) < MEASURED:
        part = SHARES[i % len(SHARES)] if lengths == "drawn" else 1.0
        inputs = batch(max(int(LONGEST * part) // 64 * 64, 16))
        began = device.now(torch)
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        passed = device.now(torch) - began
        losses.append(loss.item())
        del loss, inputs
        if device.iterated(torch, i):
            seconds.append(passed)
        i += 1


def work(asked, answer):
    """In a process of its own: sends the row that was asked for."""
    try:
        row = train(**asked)
    except RuntimeError as problem:  # before the first iteration
        row = {"error": str(problem) or type(problem).__name__}
    answer.send({**asked, **row})


def starting():
    """How processes start. A GPU that this one has used cannot be used in a fork of it."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # by which torch asks for GPUs without using one
    models()
    try:
        used = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0
    except OSError:
        used = False
    return multiprocessing.get_context("spawn" if used else "fork")


def run(patience, **asked):
    context = starting()
    rows, answer = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(asked, answer))
    process.start()
    answer.close()
    try:
        return rows.recv() if rows.poll(patience) else {**asked, "error": "it took more than %d seconds" % patience}
    except EOFError:
        process.join()
        return {**asked, "error": "the process ended with %d" % process.exitcode}
    finally:
        process.kill()
        process.join()


def run_alone(asked, write):
    """Without recomputation, twice; by fast kernels from here on where there are no others."""
    row = run(way="alone", **asked)
    if NOT_DETERMINISTIC in row.get("error", "") and not asked["fast"]:
        asked["fast"] = True
        row = dict(run(way="alone", **asked), because=row["error"].splitlines()[0])
    write(row)
    write(run(way="alone", again=1, **asked))
    return row.get("used_bytes", 0)


def run_all(options, write):
    for model in options.models:
        for lengths in options.lengths:
            asked = dict(patience=options.patience, name=model, lengths=lengths, share=0, budget=0, fast=options.fast)
            known = options.known.get((model, lengths), {})
            alone, asked["fast"] = known.get("used_bytes", 0), options.fast or known.get("fast", False)
            for way in options.ways:
                if way == "alone":
                    alone = run_alone(asked, write)
                elif way not in BUDGETED:
                    write(run(way=way, **asked))
                elif alone:
                    for share in options.budgets:
                        write(run(way=way, **{**asked, "share": share, "budget": int(share * alone)}))


def compared(rows):
    """Of each row what its losses are: "same" as alone, "differ", or "-" where two runs alone differ, or by fast
    kernels could."""
    alone = {}
    for row in rows:
        if row["way"] == "alone" and "losses" in row:
            alone.setdefault((row["name"], row["lengths"]), []).append(row["losses"])
    found = []
    for row in rows:
        expected = alone.get((row["name"], row["lengths"]), [])
        same = row.get("losses") in expected[:1]
        is_known = expected and all(one == expected[0] for one in expected) and not row.get("fast")
        found.append("-" if not is_known else "same" if same else "differ")
    return found


def judge(rows):
    """What must hold, and does not."""
    wrong = []
    by = {(r["name"], r["lengths"], r["way"], r["share"]): r for r in rows}
    for row, losses in zip(rows, compared(rows)):
        name = "%s, %s, %s at %g" % (row["name"], row["lengths"], row["way"], row["share"])
        if row.get("error"):
            refused = row["way"] in CHOSEN + ("closed",) and "cannot work" in row["error"]
            wrong += [] if refused else ["%s: %s" % (name, row["error"].splitlines()[0])]
            continue
        if row["way"] == "alone" and row.get("again") and losses == "-" and not row.get("fast"):
            wrong.append("%s, %s: two runs alone differ: losses cannot be compared" % (row["name"], row["lengths"]))
        if row["way"] != "auto":
            continue
        full = by.get((row["name"], row["lengths"], "full", 0), {})
        if row["used_bytes"] > row["budget"]:
            wrong.append("%s: %.3f GiB in use, the budget is %.3f" % (
                name, row["used_bytes"] / GIB, row["budget"] / GIB))
        if losses == "differ":
            wrong.append("%s: losses are not those without" % name)
        gain = 0.12 if row["lengths"] == "drawn" and row["share"] >= 0.6 else 0
        if full.get("seconds") and row["seconds"] > (1 - gain) * full["seconds"]:
            wrong.append("%s: %.4f s an iteration, full checkpointing %.4f" % (name, row["seconds"], full["seconds"]))
        if row["choice_seconds"] is None or row["choice_seconds"] > 2:
            wrong.append("%s: the choice took %s s" % (name, row["choice_seconds"]))
    return wrong


def show(rows):
    print("%-9s %-6s %-9s %6s %9s %9s %9s %8s %10s %s" % (
        "model", "length", "way", "budget", "used GiB", "s/iter", "waited s", "losses", "a/b/c of", "choice s"))
    for row, losses in zip(rows, compared(rows)):
        if row.get("error"):
            print("%-9s %-6s %-9s %6g %s" % (
                row["name"], row["lengths"], row["way"], row["share"], row["error"].splitlines()[0]))
            continue
        ways = "%d/%d/%d %d" % (*row["ways"], row["blocks"]) if "ways" in row else ""
        waited = sum(ns for _, _, ns in row["waited"]) / 1e9 / MEASURED if "waited" in row else 0
        print("%-9s %-6s %-9s %6g %9.3f %9.4f %9.4f %8s %10s %s" % (
            row["name"], row["lengths"], row["way"], row["share"], row["used_bytes"] / GIB, row["seconds"], waited, losses,
            ways, "%.2f" % row["choice_seconds"] if row.get("choice_seconds") is not None else ""))
    print("losses: against those alone, bit by bit; -: two runs alone differ, or may by the fast kernels")
    for row in rows:
        if row.get("because"):
            print("%s, %s, by fast kernels: %s" % (row["name"], row["lengths"], row["because"]))
    print("a/b/c of: blocks computed again, again all but attention, offloaded, of how many")


def read(paths):
    rows = []
    for path in paths:
        for line in pathlib.Path(path).read_text().splitlines():
            rows.append(json.loads(line))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--lengths", nargs="+", choices=LENGTHS, default=list(LENGTHS))
    parser.add_argument("--budgets", nargs="+", type=float, default=list(BUDGETS), help="shares of the peak alone")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(BY_DEFAULT), help="in this order; default: "
                        "%(default)s. Without 'alone' its peak is that of --show")
    parser.add_argument("--patience", type=int, default=240, metavar="SECONDS", help="for a row; default: %(default)s")
    parser.add_argument("--fast", action="store_true", help="with kernels that may give other bits in each run")
    parser.add_argument("--json", metavar="FILE", help="append the rows to it, a line each, as they come")
    parser.add_argument("--show", metavar="FILE", nargs="+", default=[], help="rows of other parts; without --json "
                        "nothing runs but the table")
    options = parser.parse_args()
    rows = read(options.show)
    options.known = {(r["name"], r["lengths"]): r for r in rows if r["way"] == "alone" and "error" not in r}

    def write(row):
        rows.append(row)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return row

    if options.json or not options.show:
        run_all(options, write)
    show(rows)
    wrong = judge(rows)
    print("\n".join(["does not hold: " + one for one in wrong] or ["all of it holds"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
