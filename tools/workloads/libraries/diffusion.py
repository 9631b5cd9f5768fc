"""diffusers' UNet over images in buckets of sizes, by accelerate's loop, as diffusers' examples train:
noise is added, the model says what was added, and a moving average of the weights is kept."""

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel
from torch.nn import functional

from libraries import common

WORDS = 77


class Buckets:
    """number -> the microbatches of an iteration: latents, all of one bucket, and captions."""

    def __init__(self, options, shape):
        self.options, self.shape = options, shape
        self.draws = common.Draw(options, "buckets")

    def __call__(self, number):
        height, width = self.draws.choice(self.shape.buckets)
        for microbatch in range(self.shape.microbatches):
            draws = torch.Generator().manual_seed(
                self.options.seed * 10**6 + number * 100 + microbatch
            )
            rows = self.shape.rows
            yield {
                "latents": torch.randn(rows, 4, height, width, generator=draws),
                "noise": torch.randn(rows, 4, height, width, generator=draws),
                "times": torch.randint(1000, (rows,), generator=draws),
                "captions": torch.randn(rows, WORDS, self.shape.caption, generator=draws),
            }


class Denoising:
    def __init__(self, options, shape):
        self.options, self.shape = options, shape
        with torch.device(options.device):
            model = UNet2DConditionModel(
                sample_size=64,
                block_out_channels=tuple(shape.channels * times for times in shape.widths),
                down_block_types=("CrossAttnDownBlock2D",) * (len(shape.widths) - 1) + ("DownBlock2D",),
                up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (len(shape.widths) - 1),
                layers_per_block=shape.layers,
                attention_head_dim=8,
                cross_attention_dim=shape.caption,
                norm_num_groups=shape.groups,
            )
        if shape.recompute:
            model.enable_gradient_checkpointing()
        self.accelerator = Accelerator(
            mixed_precision="bf16",
            gradient_accumulation_steps=shape.microbatches,
            cpu=not options.cuda,
        )
        self.noise = DDPMScheduler()
        optimizer = common.optimizer(shape.optimizer, model.parameters())
        self.average = EMAModel(model.parameters(), foreach=True) if shape.average else None
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.batches = Buckets(options, shape)

    def loss(self, batch):
        noisy = self.noise.add_noise(batch["latents"], batch["noise"], batch["times"])
        said = self.model(noisy, batch["times"], batch["captions"]).sample
        return functional.mse_loss(said.float(), batch["noise"])

    def iteration(self, number):
        total = torch.zeros((), device=self.options.device)
        for batch in self.batches(number):
            with self.accelerator.accumulate(self.model):
                loss = self.loss(common.on(self.options.device, batch))
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                total += loss.detach()
        if self.average:
            self.average.step(self.model.parameters())
        return total / self.shape.microbatches

    def describe(self):
        return {"drawn": dict(vars(self.shape)), "weights": common.count(self.model)}


def unet(options):
    draw = common.Draw(options)
    side = draw.choice((6, 8))  # of the square bucket, in the eights that halving thrice asks for
    buckets = [(8 * (side + more), 8 * (side - more)) for more in range(-2, 3)]
    return Denoising(options, common.shape(
        options, dict(channels=32, widths=(1, 2), caption=32, groups=8, buckets=[(8, 8), (8, 16)],
                      rows=2, microbatches=2), channels=draw.step(192, 320, 64),
        widths=(1, 2, 4, 4), layers=draw.choice((1, 2)), groups=32, caption=768, buckets=buckets,
        rows=draw.step(6, 12, 2), microbatches=draw.choice((1, 2, 3)), recompute=draw.either(),
        optimizer=draw.choice(("adamw", "adamw-fused")), average=draw.either(),
    ))  # fmt: skip
