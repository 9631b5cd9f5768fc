"""Models of images: transformers' ViT by Trainer, with a smaller last batch in each epoch, and
torchvision's classifiers and RetinaNet by plain loops over images of drawn sizes."""

import torch
import torchvision
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import ViTConfig, ViTForImageClassification

from libraries import common, trainers

KINDS = 1000
DETECTED = 91


class Photos:
    """Cuts of one picture of noise: making one for each image would be all one measures."""

    def __init__(self, options, most):
        draws = torch.Generator().manual_seed(options.seed)
        self.picture = torch.randint(256, (3, 2 * most, 2 * most), dtype=torch.uint8, generator=draws)
        self.most = most

    def cut(self, number, height, width):
        top, left = number * 37 % self.most, number * 101 % self.most
        return self.picture[:, top : top + height, left : left + width]


class Labelled(Dataset):
    def __init__(self, options, shape):
        self.photos, self.size = Photos(options, shape.size), shape.size
        self.rows = shape.data
        self.draws = common.Draw(options, "labels")
        self.labels = [self.draws.randrange(KINDS) for _ in range(self.rows)]

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        image = self.photos.cut(index, self.size, self.size).float().div_(255)
        return {"pixel_values": image, "labels": self.labels[index]}


def stacked(rows):
    return {
        "pixel_values": torch.stack([row["pixel_values"] for row in rows]),
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def vit(options):
    draw = common.Draw(options)
    layers, hidden = draw.step(8, 20, 4), draw.choice((768, 1024, 1280))
    patch, recompute = draw.choice((14, 16)), draw.either()
    tokens = (224 // patch) ** 2 + 1
    left = tokens * common.left_behind(hidden, layers, recompute, 0)
    rows = common.rows_within(draw, left, 16, 160)
    microbatches = common.repeats(6 * 12 * layers * hidden * hidden * rows * tokens)
    shape = common.shape(
        options, dict(hidden=64, layers=2, size=32, patch=16, rows=3, data=13, microbatches=2),
        layers=layers, hidden=hidden, size=224, patch=patch, recompute=recompute, rows=rows,
        microbatches=microbatches, data=int(rows * microbatches * draw.uniform(5, 9)),
        optimizer=draw.choice(trainers.OPTIMIZERS),
    )  # fmt: skip
    config = ViTConfig(
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        image_size=shape.size,
        patch_size=shape.patch,
        num_labels=KINDS,
    )
    with torch.device(options.device):
        made = ViTForImageClassification(config)
    return trainers.Training(
        options, shape, made, Labelled(options, shape), stacked,
        gradient_checkpointing=shape.recompute,
    )  # fmt: skip


# A classifier, and what an image of 224 x 224 costs: operations forward, bytes that forward leaves.
CLASSIFIERS = {
    "resnet50": (8.2e9, 90 << 20),
    "resnext50_32x4d": (8.5e9, 110 << 20),
    "convnext_tiny": (8.9e9, 120 << 20),
    "convnext_base": (31e9, 240 << 20),
    "regnet_y_8gf": (17e9, 130 << 20),
}


class Resized:
    """number -> the microbatches of an iteration: images all of a size that is drawn."""

    def __init__(self, options, shape):
        self.shape, self.draws = shape, common.Draw(options, "sizes")
        self.photos = Photos(options, max(shape.sizes))

    def __call__(self, number):
        height, width = self.size(number)
        for microbatch in range(self.shape.microbatches):
            first = (number * self.shape.microbatches + microbatch) * self.shape.rows
            rows = range(first, first + self.shape.rows)
            yield {
                "images": torch.stack([self.photos.cut(row, height, width) for row in rows]),
                "labels": torch.tensor([self.draws.randrange(KINDS) for _ in rows]),
            }

    def size(self, number):
        sizes = self.shape.sizes
        if self.shape.resizing == "grows":  # as training goes on
            size = sizes[min(number // 4, len(sizes) - 1)]
            return size, size
        if self.shape.resizing == "squares":
            size = self.draws.choice(sizes)
            return size, size
        return self.draws.choice(sizes), self.draws.choice(sizes)


def classified(model, batch):
    images = batch["images"].float().div_(255)
    if next(model.parameters()).is_contiguous(memory_format=torch.channels_last):
        images = images.contiguous(memory_format=torch.channels_last)
    return functional.cross_entropy(model(images).float(), batch["labels"], label_smoothing=0.1)


def convolutions(options):
    draw = common.Draw(options)
    name = draw.choice(sorted(CLASSIFIERS))
    work, left = CLASSIFIERS[name]
    sizes = sorted(draw.sample(range(160, 385, 32), 5))
    rows = common.rows_within(draw, left * (max(sizes) / 224) ** 2, 16, 128)
    shape = common.shape(
        options, dict(model="resnet18", sizes=[32, 64, 96], rows=2, microbatches=2),
        model=name, sizes=sizes, resizing=draw.choice(("grows", "squares", "both")),
        rows=rows, channels_last=draw.either(), optimizer=draw.choice(("sgd", "adamw")),
        microbatches=common.repeats(8 * work * rows * (sum(sizes) / 5 / 224) ** 2, 3),
    )  # fmt: skip
    with torch.device(options.device):
        made = torchvision.models.get_model(shape.model, weights=None)
    if shape.channels_last:
        made = made.to(memory_format=torch.channels_last)
    return common.Loop(
        options, shape, made, classified, Resized(options, shape), common.autocast(options)
    )


class Scenes:
    """number -> the microbatches of an iteration: images of sizes and numbers of boxes of their own."""

    def __init__(self, options, shape):
        self.device, self.shape = options.device, shape
        self.draws = common.Draw(options, "scenes")
        self.photos = Photos(options, shape.most)
        self.taken = 0

    def __call__(self, number):
        for _ in range(self.shape.microbatches):
            sizes = [self.size() for _ in range(self.shape.rows)]
            yield {"images": [self.image(*size) for size in sizes],
                   "targets": [self.target(*size) for size in sizes]}  # fmt: skip

    def size(self):
        least = self.shape.most // 2
        return tuple(self.draws.randint(least, self.shape.most) for _ in range(2))

    def image(self, height, width):
        self.taken += 1
        return self.photos.cut(self.taken, height, width).to(self.device).float().div_(255)

    def target(self, height, width):
        boxes = [self.box(height, width) for _ in range(self.draws.randint(1, 24))]
        kinds = [self.draws.randrange(1, DETECTED) for _ in boxes]
        return {"boxes": torch.tensor(boxes).to(self.device), "labels": torch.tensor(kinds).to(self.device)}

    def box(self, height, width):
        left, top = self.draws.uniform(0, width * 0.7), self.draws.uniform(0, height * 0.7)
        return [left, top, left + self.draws.uniform(8, width * 0.3), top + self.draws.uniform(8, height * 0.3)]  # fmt: skip


class Detection(common.Loop):
    """The plain loop over lists of images, which are on the device already."""

    def iteration(self, number):
        total = torch.zeros((), device=self.options.device)
        for scenes in self.batches(number):
            with self.context:
                loss = sum(self.model(scenes["images"], scenes["targets"]).values())
            (loss / self.shape.microbatches).backward()
            total += loss.detach().float()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total / self.shape.microbatches


def retinanet(options):
    draw = common.Draw(options)
    least = draw.choice((480, 640, 800))
    shape = common.shape(
        options, dict(rows=2, most=64, least=48, largest=80, microbatches=2),
        rows=draw.step(3, 8, 1), most=draw.choice((640, 960)), least=least, largest=least * 5 // 3,
        microbatches=draw.choice((1, 1, 2)), optimizer=draw.choice(("sgd", "adamw")),
        version=draw.choice(("retinanet_resnet50_fpn", "retinanet_resnet50_fpn_v2")),
    )  # fmt: skip
    with torch.device(options.device):
        made = torchvision.models.get_model(
            shape.version, weights=None, weights_backbone=None, num_classes=DETECTED,
            min_size=shape.least, max_size=shape.largest,
        )  # fmt: skip
    return Detection(options, shape, made, None, Scenes(options, shape), common.autocast(options))
