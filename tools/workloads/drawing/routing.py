"""How many rows each expert of a mixture gets: some are liked more, and not always the same much."""

import math


class Routing:
    def __init__(self, config, dice):
        self.experts = config["experts"]
        self.chosen = config["chosen"]
        self.skew = config["skew"]
        self.dice = dice
        every = config.get("expert_every", 1)
        self.liked = [
            [dice.gauss(0, self.skew) for _ in range(self.experts)] if layer % every == 0 else None
            for layer in range(config["layers"])
        ]

    def draw(self, tokens):
        """Rows by layer (None for one without experts) and expert; a token goes to an expert once."""
        return tuple(None if liked is None else self.layer(liked, tokens) for liked in self.liked)

    def layer(self, liked, tokens):
        rows = tokens * self.chosen
        now = [math.exp(like + self.dice.gauss(0, self.skew / 3)) for like in liked]
        whole = sum(now)
        counts = []
        for weight in now:
            share = weight / whole
            spread = math.sqrt(rows * share * (1 - share))
            counts.append(min(tokens, max(0, round(self.dice.gauss(rows * share, spread)))))
        self.settle(counts, rows - sum(counts), tokens)
        return tuple(counts)

    def settle(self, counts, left, most):
        """Takes what is too much, or gives what is left, here and there."""
        step = 1 if left > 0 else -1
        place = self.dice.randrange(len(counts))
        while left:
            part = step * max(1, abs(left) // len(counts))
            part = max(-counts[place], min(most - counts[place], part))
            counts[place] += part
            left -= part
            place = (place + 1) % len(counts)
