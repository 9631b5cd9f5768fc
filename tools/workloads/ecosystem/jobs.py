#!/usr/bin/env python3
"""Small jobs of the libraries people train with, each unpatched: jobs.py NAME prints one JSON line.

The line holds numbers that must not depend on the allocator. side_by_side.py runs each job under
torch's own allocator and under Pleat and compares them. Exit 77: the job's library is not there.
"""

import importlib
import json
import os
import sys
import tempfile

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch  # noqa: E402
from torch import nn  # noqa: E402

MIB = 1 << 20
SKIPPED = 77
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JOBS = {}


def job(*needs):
    """A job, and the modules without which it is skipped."""

    def register(function):
        JOBS[function.__name__] = (needs, function)
        return function

    return register


def tiny_llama():
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )


def samples(count, length=64, vocabulary=512):
    """Rows of tokens, of varying length, each token the successor of the one before."""
    made = []
    for index in range(count):
        tokens = [(index * 37 + 11 * place) % vocabulary for place in range(length - index % 16)]
        made.append({"input_ids": tokens, "labels": tokens})
    return made


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(name, filler):
        return torch.tensor([row[name] + [filler] * (longest - len(row[name])) for row in rows])

    return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100)}


def mlp(width=512, depth=4):
    layers = [module for _ in range(depth) for module in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def data(step, rows=64, width=512):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, width, generator=generator)
    return x.to(DEVICE), x[:, :1].sin().to(DEVICE)


@job("transformers", "accelerate")
def trainer(folder):
    """transformers' Trainer; from_pretrained warms the allocator up with one huge tensor."""
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments, modeling_utils

    LlamaForCausalLM(tiny_llama()).save_pretrained(os.path.join(folder, "model"))
    warmed = []
    warm_up = modeling_utils.caching_allocator_warmup

    def watched(*arguments, **named):
        warmed.append(True)
        return warm_up(*arguments, **named)

    modeling_utils.caching_allocator_warmup = watched
    model = LlamaForCausalLM.from_pretrained(os.path.join(folder, "model"), device_map=DEVICE)
    modeling_utils.caching_allocator_warmup = warm_up
    training = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=os.path.join(folder, "out"),
            max_steps=30,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=1,
            disable_tqdm=True,
            skip_memory_metrics=False,
        ),
        train_dataset=samples(256),
        data_collator=collate,
    )
    told = training.train()
    assert not torch.cuda.is_available() or "train_mem_gpu_peaked_delta" in told.metrics
    losses = [line["loss"] for line in training.state.log_history if "loss" in line]
    return {"losses": losses, "warmed": len(warmed)}


@job("accelerate")
def batch_size(folder):
    """accelerate's find_executable_batch_size catches the out-of-memory error and tries less."""
    from accelerate.utils import find_executable_batch_size

    tried = []
    if DEVICE == "cuda":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(1024 * MIB / total)

    @find_executable_batch_size(
        starting_batch_size=1024, reduce_batch_size_fn=lambda: tried[-1] // 2
    )
    def train(batch):
        tried.append(batch)
        torch.manual_seed(1)
        model = mlp().to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for step in range(8):
            # A MiB a sample that is live through backward.
            ballast = torch.zeros(batch, MIB // 4, device=DEVICE, requires_grad=True)
            x, y = data(step)
            loss = (model(x) - y).square().mean() + ballast[:, 0].sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    losses = train()
    return {"tried": tried, "losses": losses}


@job("pytorch_lightning")
def lightning(folder):
    """Lightning, by the name that it is installed under alone and as part of `lightning`."""
    import pytorch_lightning as L
    from pytorch_lightning.callbacks import DeviceStatsMonitor
    from pytorch_lightning.loggers import CSVLogger

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = mlp()
            self.losses = []

        def training_step(self, batch, index):
            loss = (self.model(batch[0]) - batch[1]).square().mean()
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(640, 512, generator=generator)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x[:, :1].sin()), batch_size=32
    )
    module = Module()
    L.Trainer(
        max_epochs=2,
        accelerator="gpu" if DEVICE == "cuda" else "cpu",
        devices=1,
        callbacks=[DeviceStatsMonitor()],
        logger=CSVLogger(folder),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_checkpointing=False,
    ).fit(module, loader)
    return {"losses": torch.stack(module.losses).tolist()}


@job("peft", "transformers")
def peft(folder):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(tiny_llama()).to(DEVICE)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    model.train()
    optimizer = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-3)
    losses = []
    rows = samples(256)
    for step in range(30):
        batch = {k: v.to(DEVICE) for k, v in collate(rows[8 * step : 8 * step + 8]).items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses}


@job()
def fsdp2(folder):
    """fully_shard over one process: gathers and reduces on streams of its own."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    backend = "nccl" if DEVICE == "cuda" else "gloo"
    store = torch.distributed.FileStore(os.path.join(folder, "store"), 1)
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
    model = mlp(1024, 8).to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(30):
        x, y = data(step, 64 + 8 * (step % 3), 1024)
        loss = (model(x).float() - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.distributed.destroy_process_group()
    return {"losses": losses}


@job("triton")
def reduce_overhead(folder):
    """torch.compile with CUDA graphs, forward and backward, while other tensors come and go."""
    model = mlp().to(DEVICE)
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses, kept = [], []
    for step in range(40):
        x, y = data(step)
        torch.compiler.cudagraph_mark_step_begin()
        loss = (compiled(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        kept = kept[-3:] + [torch.full((MIB * (step % 7 + 1),), float(step), device=DEVICE)]
        assert all(tensor[-1].item() == tensor[0].item() for tensor in kept)
    return {"losses": losses}


@job()
def graph(folder):
    """A captured training step, replayed 1,000 times while other tensors come and go."""
    if DEVICE != "cuda":
        return None
    model = mlp().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = data(0)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    losses, kept = [], []
    for turn in range(1000):
        new_x, new_y = data(turn % 10)
        x.copy_(new_x)
        y.copy_(new_y)
        captured.replay()
        kept = kept[-5:] + [torch.full((1 + turn * 7919 % (4 * MIB),), turn, device=DEVICE)]
        if turn % 100 == 99:
            losses.append(loss.item())
            assert all((tensor == tensor[0]).all().item() for tensor in kept)
            torch.cuda.empty_cache()
    return {"losses": losses}


@job()
def streams(folder):
    """Three side streams read what the main one gives back at once, kept by record_stream."""
    if DEVICE != "cuda":
        return None
    sides = [torch.cuda.Stream() for _ in range(3)]
    sums = []
    for turn in range(200):
        tensor = torch.full((MIB * (1 + turn % 5),), turn, dtype=torch.int64, device=DEVICE)
        for index, side in enumerate(sides):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(100000 * index)
                sums.append(tensor.sum())
                scratch = tensor * 2
                sums.append(scratch.max())
            tensor.record_stream(side)
        del tensor
        torch.full((MIB * (1 + turn % 5),), -1, dtype=torch.int64, device=DEVICE)
    torch.cuda.synchronize()
    return {"sums": [value.item() for value in sums]}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in JOBS:
        sys.exit("jobs.py: name one of: " + ", ".join(JOBS))
    needs, function = JOBS[sys.argv[1]]
    for name in needs:
        try:
            importlib.import_module(name)
        except ImportError as problem:
            print("skipped: %s" % problem, file=sys.stderr)
            sys.exit(SKIPPED)
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder:
        answer = function(folder)
    if answer is None:
        print("skipped: no GPU", file=sys.stderr)
        sys.exit(SKIPPED)
    allocator = torch.cuda.get_allocator_backend() if torch.cuda.is_available() else None
    print(json.dumps({"job": sys.argv[1], "allocator": allocator, "answer": answer}))


if __name__ == "__main__":
    main()
