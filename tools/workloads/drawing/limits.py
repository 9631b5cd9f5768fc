"""What the settings of a job may be: their names, their kinds, and which go together."""

from drawing.settings import FAMILIES

CHOICES = {
    "family": FAMILIES,
    "norm": ("layer", "rms", "rms-parts"),
    "attention": ("fused", "eager"),
    "mlp": ("gelu", "gelu-parts", "swiglu"),
    "precision": ("autocast", "master", "bf16"),
    "recompute": ("none", "layers", "attention", "mlp"),
    "sharding": ("none", "scatter", "layers"),
    "gathered": ("one", "each"),
    "routing": ("sliced", "masked", "capacity"),
    "rows_by": ("select", "index"),
    "optimizer": ("adam", "sgd"),
    "optimizer_way": ("foreach", "fused", "loop", "host", "flat"),
    "batch": ("fixed", "drawn", "tail", "buckets", "packed"),
    "each": ("iteration", "microbatch"),
    "fetch": ("each", "step", "ahead"),
    "lora_item": (2, 4),
}
FLAGS = set(
    "bias fused rotary final_norm weights_in_groups tied outputs_stay loss_again wide_softmax holds_logits reentrant loss gathers clip "
    "gradients_stay lora_scaled marks norms_trained channels_last focal graph_attention keeps_input "
    "reference steps".split()
)
COUNTS = set(
    "iterations samples length step microbatches layers decoder_layers heads kv_heads hidden inner "
    "vocabulary rank virtual_stages depth world experts chosen expert_inner expert_every tokens "
    "loss_pieces width pyramid classes least most repeats features nodes degree evaluation_batches "
    "generated".split()
)
AMOUNTS = set(
    "positions frozen tower attention_from shared_inner large_at evaluation_every generation_every "
    "checkpoint_every logging_every".split()
)
NUMBERS = set(
    "dropout embedding_dropout lora_dropout lag skew spread capacity evaluation_factor".split()
)
LISTS = {"blocks", "widths", "lengths"}


def is_whole(value, least):
    return type(value) is int and value >= least


def fault(name, value):
    """What is wrong with a setting's value, or None."""
    if name in CHOICES:
        wanted = "one of %s" % ", ".join(map(str, CHOICES[name]))
        fits = value in CHOICES[name] and type(value) is not bool
    elif name in FLAGS:
        wanted, fits = "true or false", type(value) is bool
    elif name in COUNTS:
        wanted, fits = "a whole number from 1 on", is_whole(value, 1)
    elif name in AMOUNTS:
        wanted = "a whole number from 0 on"
        fits = is_whole(value, 0) or (name == "large_at" and value is None)
    elif name in NUMBERS:
        wanted, fits = "a number from 0 on", type(value) in (int, float) and value >= 0
    elif name in LISTS:
        wanted = "a list of whole numbers from 1 on"
        fits = type(value) in (list, tuple) and value and all(is_whole(one, 1) for one in value)
    else:
        return "no job has a setting %s" % name
    return None if fits else "%s is %s, not %s" % (name, wanted, value)


def clash(config):
    """Which settings of a job do not go together, or None."""
    family, heads, depth = config["family"], config.get("heads"), config["depth"]
    for name, owner in (("experts", "moe"), ("rank", "lora")):
        if config.get(name) and family != owner:
            return "%s: only %s has them" % (name, owner)
    if config.get("experts") and config["chosen"] > config["experts"]:
        return "chosen %(chosen)d is more than experts %(experts)d" % config
    if heads and config["hidden"] % heads:
        return "heads %(heads)d does not divide hidden %(hidden)d" % config
    if heads and heads % (config.get("kv_heads") or heads):
        return "kv_heads %(kv_heads)d does not divide heads %(heads)d" % config
    if config["virtual_stages"] > config.get("layers", 1):
        return "virtual_stages %(virtual_stages)d is more than layers %(layers)d" % config
    if config["virtual_stages"] > 1 and config["microbatches"] % depth:
        return "microbatches %(microbatches)d is no multiple of depth %(depth)d" % config
    if config["loss_pieces"] > 1 and config["outputs_stay"]:
        return "outputs_stay: with loss_pieces there are no logits to keep"
    if config["reference"] and max(depth, config["virtual_stages"]) > 1:
        return "reference: a rank of a pipeline has no whole model beside its own"
    if config["reference"] and config["outputs_stay"]:
        return "outputs_stay: what a reference made is not kept"
    if config["loss_again"] and config["precision"] == "autocast":
        return "loss_again: with precision autocast each piece would have casts of its own"
    if config["sharding"] == "layers" and config["gathered"] == "each" and config["lag"]:
        return "lag %(lag)g: weights that are gathered each are given back by events" % config
    if family == "detector" and config["least"] > config["most"]:
        return "least %(least)d is more than most %(most)d" % config
    return None


def refuse(problem):
    if problem:
        raise ValueError(problem)


def check_given(given):
    for name, value in given.items():
        refuse(fault(name, value))


def check_whole(config):
    refuse(clash(config))
