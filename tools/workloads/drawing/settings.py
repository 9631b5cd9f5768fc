"""Draws what a job is: every setting that describe() shows, each from the seed unless it is given."""

import math

FAMILIES = ("decoder", "lora", "moe", "encoder-decoder", "detector", "unet", "graph")
WEIGHTS = (24, 12, 20, 14, 12, 8, 10)
IMAGES = ("detector", "unet")
LANGUAGES = ("decoder", "lora", "moe", "encoder-decoder")

# What holds where nothing else is said; recorded jobs (likes.py) begin with these, too.
DEFAULTS = {
    "norm": "layer",
    "bias": True,
    "fused": True,
    "positions": 0,
    "rotary": False,
    "final_norm": True,
    "weights_in_groups": False,  # both norms first in a block, and the embeddings behind the blocks
    "tied": False,
    "holds_logits": False,  # in bf16, while the loss has them in fp32
    "outputs_stay": False,  # loss and logits, until the next forward is done
    "loss_pieces": 1,
    "reference": False,  # a frozen model goes forward without gradients before each microbatch
    "loss_again": False,  # a piece's scores are computed again in backward
    "attention": "fused",  # by one operator, or written out ("eager")
    "wide_softmax": False,  # of eager attention, in fp32 whatever the model's type is
    "dropout": 0.0,
    "embedding_dropout": 0.0,
    "lora_scaled": True,  # thin results by alpha / rank, as peft's
    "precision": "master",
    "recompute": "none",
    "reentrant": False,
    "virtual_stages": 1,
    "depth": 1,
    "loss": True,
    "world": 1,
    "sharding": "none",
    "gathers": False,
    "gathered": "one",  # a block's weights come in one flat tensor, or each gets its own
    "lag": 0.5,
    "frozen": 0,  # blocks, the first ones, that are not trained
    "optimizer": "adam",
    "optimizer_way": "foreach",
    "clip": True,
    "gradients_stay": False,  # zero_grad comes before backward, not behind the step
    "batch": "fixed",
    "each": "microbatch",
    "skew": 0.1,
    "evaluation_every": 0,
    "generation_every": 0,
    "checkpoint_every": 0,
    "logging_every": 0,
    "large_at": None,
    "marks": True,
    "fetch": "each",  # batches are made one by one, all of a step together, or one ahead
    "steps": False,  # the optimizer's steps mark, as under PyTorch; else where an iteration begins
}


class Settings(dict):
    """A dict that takes a drawn value only where none is given."""

    def __init__(self, dice, given):
        super().__init__(DEFAULTS)
        self.dice = dice
        self.given = given
        self.update(given)

    def draw(self, name, choices, weights=None):
        """One of the choices (or what it is already, where given)."""
        value = self.dice.choices(choices, weights)[0]
        return self.put(name, value)

    def put(self, name, value):
        if name not in self.given:
            self[name] = value
        return self[name]


def draw(dice, given):
    settings = Settings(dice, given)
    family = settings.draw("family", FAMILIES, WEIGHTS)
    {
        "decoder": decoder,
        "lora": lora,
        "moe": mixture,
        "encoder-decoder": translator,
        "detector": detector,
        "unet": unet,
        "graph": graph,
    }[family](settings, dice)
    optimizer(settings, dice)
    interruptions(settings, dice)
    settings.draw("iterations", list(range(8, 15)))
    habits(settings, dice)
    return dict(settings)


def width(settings, dice, heads, each=(64, 80, 128)):
    settings.draw("heads", heads)
    return settings.put("hidden", settings["heads"] * dice.choice(each))


def language(settings, dice):
    """What models of language share."""
    hidden = settings["hidden"]
    settings.draw("vocabulary", (32000, 50304, 65024, 128256, 151936), (4, 3, 1, 2, 1))
    llama = dice.random() < 0.6
    settings.put("norm", dice.choice(("rms", "rms-parts")) if llama else "layer")
    settings.put("bias", not llama)
    settings.put("rotary", llama)
    settings.put("fused", not llama and dice.random() < 0.6)
    settings.put("mlp", "swiglu" if llama else "gelu")
    inner = -(-int(hidden * 8 / 3) // 256) * 256 if llama else 4 * hidden
    settings.put("inner", inner)
    settings.put("holds_logits", dice.random() < 0.5)
    settings.put("tied", dice.random() < 0.4)
    settings.put("dropout", 0.0 if llama else dice.choice((0.0, 0.1)))
    settings.put("embedding_dropout", settings["dropout"])
    settings.draw("precision", ("autocast", "master", "bf16"), (3, 3, 4))
    settings.draw("recompute", ("none", "layers", "attention", "mlp"), (9, 8, 2, 2))
    settings.put("reentrant", settings["recompute"] != "none" and dice.random() < 0.4)
    settings.draw("length", (512, 1024, 2048, 4096), (2, 4, 4, 2))
    settings.draw("samples", (1, 2, 3, 4, 6, 8, 12, 16))
    kinds = ("fixed", "drawn", "tail", "buckets", "packed")
    settings.draw("batch", kinds, (5, 4, 2, 2, 2))
    settings.draw("step", (1, 8, 64), (2, 3, 1))
    settings.put("spread", round(dice.uniform(0.3, 0.8), 2))
    settings.draw("each", ("iteration", "microbatch"))
    settings.draw("microbatches", (1, 2, 3, 4, 8), (5, 4, 1, 3, 1))


def decoder(settings, dice, plain=False):
    width(settings, dice, (8, 12, 16, 20, 24, 32))
    settings.draw("layers", list(range(4, 33)))
    language(settings, dice)
    if settings["norm"] == "layer":
        settings.put("positions", dice.choice((0, settings["length"])))
    if settings["rotary"] and dice.random() < 0.5:
        heads = settings["heads"]
        settings.put("kv_heads", heads // math.gcd(heads, dice.choice((2, 4))))
    way = placed(settings, dice, (0, 3, 7) if plain else (3, 2, 5))
    if way == "pipeline":
        pipeline(settings, dice)
    elif way == "sharded":
        sharding(settings, dice, ("layers",) if plain else ("scatter", "layers"))


def placed(settings, dice, chances):
    """How the model lies on several devices, if it does: as what is given has it, or drawn."""
    given = settings.given
    way = dice.choices(("pipeline", "sharded", "whole"), chances)[0]
    if given.get("sharding", "none") != "none":
        return "sharded"
    if max(given.get("depth", 1), given.get("virtual_stages", 1)) > 1:
        return "pipeline"
    if {"sharding", "depth", "virtual_stages"} & set(given) or (given.get("reference") and way == "pipeline"):
        return "whole"
    return way


def pipeline(settings, dice):
    """One rank's work: the first's, whose stages may be several."""
    depth = settings.draw("depth", (2, 3, 4), (4, 1, 3))
    stages = settings.draw("virtual_stages", (1, 2, 3), (2, 2, 1))
    settings.put("layers", stages * max(2, settings["layers"] // stages))
    settings.put("microbatches", depth * dice.choice((1, 2, 2, 3)))
    settings.put("loss", stages > 1 and dice.random() < 0.5)


def sharding(settings, dice, kinds):
    settings.draw("sharding", kinds)
    settings.draw("world", (2, 4, 8, 16))
    if settings["precision"] == "autocast":
        settings.put("precision", dice.choice(("master", "bf16")))
    if settings["sharding"] == "scatter":
        settings.put("precision", "master")
        settings.put("gathers", dice.random() < 0.5)
    settings.put("lag", dice.choice((0.0, 0.1, 0.5, 1.0)))


def lora(settings, dice):
    decoder(settings, dice, plain=True)
    settings.put("precision", "bf16")
    settings.draw("rank", (4, 8, 16, 32, 64))
    settings.draw("lora_item", (2, 4), (3, 1))
    settings.put("lora_dropout", dice.choice((0.0, 0.05, 0.1)))
    settings.put("norms_trained", dice.random() < 0.1)


def mixture(settings, dice):
    width(settings, dice, (8, 12, 16, 24, 32), (64, 128))
    # Experts that run one by one cause so many events that there are fewer of them.
    one_by_one = settings.draw("routing", ("sliced", "masked", "capacity"), (4, 4, 3)) != "capacity"
    settings.draw("layers", list(range(1, 7) if one_by_one else range(2, 13)))
    language(settings, dice)
    if one_by_one:
        settings.draw("microbatches", (1, 2, 4), (3, 2, 1))
    settings.draw("experts", (4, 8, 16, 32, 60) if one_by_one else (8, 16, 32, 64, 128))
    most = max(1, settings["experts"] // 2)
    settings.put("chosen", min(most, dice.choice((1, 2, 2, 4, 6, 8))))
    inner = dice.choice((512, 768, 1024, 1408, 2048, 4096))
    settings.put("expert_inner", inner)
    settings.put("capacity", dice.choice((1.0, 1.25, 2.0)))
    settings.put("shared_inner", dice.choice((0, 0, 2 * inner, 4 * inner)))
    settings.put("expert_every", dice.choice((1, 1, 1, 2)))
    settings.put("skew", round(dice.choice((0.05, 0.3, 0.8)) * dice.uniform(0.7, 1.3), 3))
    if settings["routing"] == "capacity":
        settings.put("precision", dice.choice(("master", "bf16")))
    if placed(settings, dice, (3, 0, 7)) == "pipeline":
        pipeline(settings, dice)


def translator(settings, dice):
    width(settings, dice, (8, 12, 16), (64,))
    settings.draw("layers", list(range(3, 15)))
    settings.put(
        "decoder_layers", dice.choice((settings["layers"], max(2, settings["layers"] // 2)))
    )
    language(settings, dice)
    settings.put("rotary", False)
    settings.put("mlp", "gelu")
    settings.put("inner", 4 * settings["hidden"])
    settings.put("length", dice.choice((128, 256, 512)))
    settings.draw("batch", ("fixed", "drawn", "buckets"), (1, 4, 2))
    settings.draw("tokens", (4096, 8192, 16384, 32768))


def image(settings, dice):
    settings.draw("precision", ("autocast", "bf16"), (4, 1))
    settings.draw("channels_last", (True, False))
    settings.draw("recompute", ("none", "layers"), (9, 1))
    settings.put("reentrant", False)
    settings.draw("samples", (2, 4, 8, 16, 32))
    settings.draw("batch", ("fixed", "drawn"), (1, 3))
    settings.draw("microbatches", (1, 2, 4), (6, 1, 1))
    settings.draw("optimizer", ("adam", "sgd"))


def detector(settings, dice):
    image(settings, dice)
    settings.draw("width", (32, 64, 96))
    settings.put("blocks", dice.choice(((2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3))))
    settings.draw("pyramid", (128, 256))
    settings.draw("tower", (0, 1, 2, 4))
    settings.draw("classes", (20, 80, 90))
    settings.put("least", dice.choice((320, 480, 640)))
    settings.put("most", max(settings["least"], dice.choice((512, 640, 800, 1024))))


def unet(settings, dice):
    image(settings, dice)
    settings.draw("width", (64, 128, 192, 256))
    settings.put("widths", dice.choice(((1, 2, 4), (1, 2, 2, 4), (1, 2, 4, 4))))
    settings.draw("repeats", (1, 2, 3))
    settings.draw("attention_from", (1, 2, 3))
    settings.draw("most", (64, 128, 256, 384))


def graph(settings, dice):
    settings.draw("hidden", (128, 256, 384, 512))
    settings.draw("layers", list(range(3, 17)))
    settings.draw("features", (32, 128, 300))
    settings.draw("nodes", (4096, 16384, 65536, 131072))
    settings.draw("degree", (6, 12, 24, 48))
    settings.draw("graph_attention", (True, False))
    settings.draw("precision", ("autocast", "bf16"))
    settings.draw("batch", ("fixed", "drawn"), (1, 4))
    settings.draw("microbatches", (1, 2), (4, 1))


def optimizer(settings, dice):
    if settings["family"] not in IMAGES:
        settings.put("optimizer", "adam")
    ways = ("foreach", "fused", "loop", "host", "flat")
    way = settings.draw("optimizer_way", ways, (45, 30, 5, 10, 10))
    if settings["optimizer"] == "sgd" or settings["sharding"] != "none":
        if way not in ("foreach", "fused"):
            settings.put("optimizer_way", "foreach")
    if way == "host" and settings["family"] not in LANGUAGES:
        settings.put("optimizer_way", "foreach")  # what is offloaded is a large model's state
    settings.put("clip", dice.random() < 0.6)
    # An optimizer that is not torch's tells nobody when it steps.
    settings.put("marks", settings["optimizer_way"] != "flat")


def sometimes(settings, dice, name, chance, every):
    settings.put(name, dice.choice(every) if dice.random() < chance else 0)


def interruptions(settings, dice):
    piped = settings["depth"] > 1 or settings["virtual_stages"] > 1
    sometimes(settings, dice, "evaluation_every", 0.0 if piped else 0.3, (2, 3, 4, 5))
    settings.put("evaluation_batches", dice.choice((1, 2, 4)))
    settings.put("evaluation_factor", dice.choice((0.5, 1.0, 2.0)))
    generates = settings["family"] in ("decoder", "lora") and not piped
    generates = generates and settings["sharding"] != "layers" and settings["layers"] <= 16
    sometimes(settings, dice, "generation_every", 0.25 if generates else 0.0, (3, 4))
    settings.put("generated", dice.choice((6, 10, 16)))
    sometimes(settings, dice, "checkpoint_every", 0.25, (3, 4, 5))
    sometimes(settings, dice, "logging_every", 0.4, (1, 2, 5))
    settings.put("large_at", dice.randrange(3, 7) if dice.random() < 0.12 else None)


def habits(settings, dice):
    """What programs do in one way or the other: drawn last, so that nothing else is drawn otherwise."""
    stay = dice.random() < (0.3 if settings["family"] in IMAGES else 0.15)
    # Gradients that are summed in buffers go with the step.
    whole = settings["precision"] != "master" and settings["sharding"] == "none"
    settings.put("gradients_stay", stay and whole)
    if settings["family"] == "graph":
        settings.draw("rows_by", ("select", "index"), (3, 1))
    if settings["family"] == "detector":
        settings.put("focal", dice.random() < 0.6)
    if settings["family"] in LANGUAGES:
        settings.draw("attention", ("fused", "eager"), (4, 1))
        settings.put("wide_softmax", dice.random() < (0.2 if settings["norm"] == "layer" else 0.9))
        losses(settings, dice)
        parts = dice.random() < 0.3
        if parts and settings["mlp"] == "gelu":
            settings.put("mlp", "gelu-parts")
    if settings["sharding"] == "layers":
        if settings.draw("gathered", ("one", "each"), (1, 2)) == "each":
            settings.put("lag", 0.0)  # by events and not by record_stream
        if settings["lag"]:
            settings.put("gathered", "one")
    if settings.given.get("reference"):
        settings.put("outputs_stay", False)
    apart = max(settings["depth"], settings["virtual_stages"]) > 1 or settings["outputs_stay"]
    chance = {"decoder": 0.12, "lora": 0.25}.get(settings["family"], 0.0)
    settings.put("reference", dice.random() < chance and not apart)
    settings.put("steps", dice.random() < 0.75)
    settings.draw("fetch", ("each", "step", "ahead"), (2, 1, 1))


def losses(settings, dice):
    """How the loss is computed, and what a loop of the program's own keeps of the model's outputs."""
    settings.draw("loss_pieces", (1, 4, 8, 16), (12, 1, 1, 1))
    # With autocast a piece that runs again would have casts of its own.
    again = dice.random() < 0.5 and settings["loss_pieces"] > 1
    settings.put("loss_again", again and settings["precision"] != "autocast")
    stay = dice.random() < 0.35 and settings["loss_pieces"] == 1
    settings.put("outputs_stay", stay and max(settings["depth"], settings["virtual_stages"]) == 1)
    if settings["outputs_stay"]:
        settings.put("loss_pieces", 1)
