"""What batches a job gets: their samples, lengths, sizes, boxes or edges, and their routing.

The numbers come from the job's data, which is the seed's and the run's.
"""

import math

from drawing.routing import Routing

RATIOS = (1.0, 1.33, 1.33, 1.5, 1.78)


def up_to(number, step):
    return max(step, -(-int(number) // step) * step)


def pareto(data, alpha):
    """At least 1, with a long tail. (Random's own rounds otherwise from version to version.)"""
    return (1.0 - data.random()) ** (-1.0 / alpha)


class Batches:
    def __init__(self, config, data, model):
        """`model`: draws what does not change from run to run."""
        self.config = config
        self.data = data
        self.router = None
        if config.get("experts"):
            self.router = Routing(config, model)
            self.router.dice = data

    def iteration(self, number):
        """The shapes of an iteration's microbatches."""
        config = self.config
        count = config["microbatches"]
        lengths = config.get("lengths")
        once = config.get("large_at") == number
        if lengths:
            drawn = [(config["samples"], lengths[number % len(lengths)])] * count
        elif config["each"] == "iteration":
            drawn = [self.draw()] * count
        else:
            drawn = [self.draw() for _ in range(count)]
        if once:
            drawn = [(2 * one[0],) + one[1:] for one in drawn]
        return [self.shape(one) for one in drawn]

    def evaluation(self):
        """The shapes of an evaluation's batches."""
        factor = self.config["evaluation_factor"]
        drawn = [self.draw() for _ in range(self.config["evaluation_batches"])]
        return [self.shape((max(1, int(factor * one[0])),) + one[1:]) for one in drawn]

    def shape(self, drawn):
        family = self.config["family"]
        if family in ("decoder", "lora", "moe"):
            samples, length = drawn
            routing = None if self.router is None else self.router.draw(samples * length)
            return samples, length, routing
        if family == "detector":
            inside = tuple(min(200, int(pareto(self.data, 1.0))) for _ in range(drawn[0]))
            return drawn + (inside,)
        if family == "unet":
            return drawn + ((),)
        return drawn

    def draw(self):
        return getattr(self, self.config["family"].replace("-", "_"))()

    def decoder(self):
        config, data = self.config, self.data
        kind, samples, most = config["batch"], config["samples"], config["length"]
        if kind == "drawn":
            longest = max(math.exp(data.gauss(0, config["spread"])) for _ in range(samples))
            return samples, min(most, up_to(most / 4 * longest, config["step"]))
        if kind == "tail":
            longest = max(pareto(data, 1.3) for _ in range(samples))
            return samples, min(most, up_to(most / 12 * longest, config["step"]))
        if kind == "buckets":
            length = max(1, most >> data.randrange(4))
            return samples * most // length, length
        if kind == "packed":  # whole samples, as many as there is room for
            total, room = 0, samples * most
            while True:
                more = min(most, max(16, int(math.exp(data.gauss(math.log(most / 3), 0.7)))))
                if total + more > room:
                    return 1, max(total, 64)
                total += more
        return samples, most

    lora = moe = decoder

    def encoder_decoder(self):
        config, data = self.config, self.data
        most, budget = config["length"], config["tokens"]
        if config["batch"] == "fixed":
            return max(1, budget // most), most, most
        source = min(most, max(8, round(math.exp(data.gauss(math.log(most / 3), 0.6)))))
        target = min(most, max(8, round(source * math.exp(data.gauss(0, 0.25)))))
        if config["batch"] == "buckets":
            step = max(1, most // 8)
            source, target = up_to(source, step), up_to(target, step)
        return max(1, budget // max(source, target)), source, target

    def detector(self):
        config, data = self.config, self.data
        if config["batch"] == "fixed":
            return config["samples"], config["most"], config["most"]
        short = data.choice(range(config["least"], config["most"] + 1, 32))
        sides = (short, up_to(round(short * data.choice(RATIOS)), 32))
        return (config["samples"],) + (sides if data.random() < 0.7 else sides[::-1])

    def unet(self):
        config, data = self.config, self.data
        side = config["most"]
        if config["batch"] == "fixed":
            return config["samples"], side, side
        # Buckets of about the same area.
        high = up_to(side * math.exp(data.uniform(-0.5, 0.5)), 64)
        return config["samples"], high, up_to(side * side / high, 64)

    def graph(self):
        config, data = self.config, self.data
        if config["batch"] == "fixed":
            return config["nodes"], config["nodes"] * config["degree"]
        nodes = sum(
            max(2, int(math.exp(data.gauss(math.log(config["nodes"] / 64), 0.8))))
            for _ in range(64)
        )
        nodes = min(nodes, 4 * config["nodes"])
        return nodes, int(nodes * config["degree"] * math.exp(data.gauss(0, 0.2)))
