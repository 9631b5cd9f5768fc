#!/usr/bin/env python3
"""Trains a detector, a ResNet-50 with a feature pyramid and dense heads, on images of many sizes.

Each iteration draws the shorter side and the ratio of its images and pads them to multiples of 32,
as multi-scale training does; the head's candidates are as many as there are cells of the pyramid.
The last line on standard output is one JSON object; --record writes the job's allocations as a torch
snapshot.
"""

import random

import torch
from torch import nn
from torch.nn import functional

import harness

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride
RATIOS = (1.0, 1.33, 1.33, 1.5, 1.78)
PYRAMID = 256


def convolution(inputs, outputs, size, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.one = convolution(inputs, width, 1)
        self.two = convolution(width, width, 3, stride)
        self.three = convolution(width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.skip = nn.Identity() if same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, x):
        y = functional.relu(self.two(functional.relu(self.one(x))))
        return functional.relu(self.three(y) + self.skip(x))


class Detector(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        stages, widths, inputs = [], [], 64
        for blocks, width, stride in STAGES:
            first = Block(inputs, width, stride)
            inputs = 4 * width
            stages.append(
                nn.Sequential(first, *(Block(inputs, width, 1) for _ in range(blocks - 1)))
            )
            widths.append(inputs)
        self.stages = nn.ModuleList(stages)
        self.lateral = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(PYRAMID, PYRAMID, 3, 1, 1) for _ in widths)
        self.head = nn.Sequential(
            convolution(PYRAMID, PYRAMID, 3), nn.ReLU(), nn.Conv2d(PYRAMID, classes, 3, 1, 1)
        )

    def forward(self, images):
        """Scores of each cell of each level, finest last."""
        x, levels = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        above, scores = None, []
        for level, lateral, smooth in reversed(list(zip(levels, self.lateral, self.smooth))):
            x = lateral(level)
            if above is not None:
                x = x + functional.interpolate(above, size=x.shape[-2:])
            above = x
            scores.append(self.head(smooth(x)))
        return scores


class Trainer:
    def __init__(self, options, recorder):
        self.options = options
        self.recorder = recorder
        self.sizes = random.Random(options.seed)
        self.pixels = torch.Generator().manual_seed(options.seed)
        with torch.device(options.device):
            self.model = Detector(options.classes)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.drawn = []

    def draw(self):
        """Height and width of a batch's images."""
        least, most = self.options.least, self.options.most
        short = self.sizes.choice(range(least, most + 1, 32))
        sides = (short, -(-round(short * self.sizes.choice(RATIOS)) // 32) * 32)
        return sides if self.sizes.random() < 0.7 else sides[::-1]

    def forward(self):
        self.drawn.append(self.draw())
        shape = (self.options.batch, 3, *self.drawn[-1])
        images = torch.randn(shape, generator=self.pixels).to(self.options.device)
        with torch.autocast(torch.device(self.options.device).type, dtype=torch.bfloat16):
            scores = self.model(images)
        return sum(functional.softplus(level.float()).mean() for level in scores)

    def iteration(self, number):
        return harness.step(self, number, self.forward)

    def describe(self):
        names = ("batch", "least", "most", "classes")
        told = {name: getattr(self.options, name) for name in names}
        count = sum(weight.numel() for weight in self.model.parameters())
        return dict(parameters=count, images=self.drawn, **told)


def add_options(parser):
    for name, default, help in (
        ("batch", 8, "images of a batch"),
        ("least", 480, "the shorter side at least, a multiple of 32"),
        ("most", 800, "the shorter side at most"),
        ("classes", 90, "kinds of things"),
    ):
        harness.number(parser, "--" + name, default, help)


def check(parser, options):
    if options.least % 32 or options.least > options.most:
        parser.error("--least must be a multiple of 32, and at most --most")


make = Trainer

if __name__ == "__main__":
    harness.main("detect", __doc__, add_options, make, 40, check)
