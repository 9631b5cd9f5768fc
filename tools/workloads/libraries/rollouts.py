"""Rollouts and training by turns: transformers' generate answers prompts, with keys and values that
grow with each token, and then the model takes steps on what it answered."""

import torch
from transformers import Qwen3Config

from libraries import common, decoders


class Rollouts:
    def __init__(self, options, shape):
        self.options, self.shape = options, shape
        config = Qwen3Config(head_dim=shape.hidden // shape.heads, **decoders.sizes(shape))
        self.model = decoders.model(options, config, torch.bfloat16)
        self.model.generation_config.pad_token_id = 0
        self.optimizer = common.optimizer(shape.optimizer, self.model.parameters(), 1e-5)
        self.draws = common.Draw(options, "rollouts")
        kept = dict(rows=shape.rows * options.iterations, kind=shape.lengths, most=shape.most)
        self.prompts = common.Texts(options, vocabulary=decoders.VOCABULARY, **kept)

    def ask(self, number):
        """Prompts, padded at their beginnings."""
        first = number * self.shape.rows
        rows = [self.prompts[index]["input_ids"] for index in range(first, first + self.shape.rows)]
        turned = [row.flip(0) for row in rows]
        return {
            "input_ids": common.pad(turned, 0).flip(1),
            "attention_mask": common.pad([torch.ones_like(row) for row in turned], 0).flip(1),
        }

    @torch.no_grad()
    def answered(self, prompts):
        self.model.eval()
        answers = self.draws.randint(self.shape.answers // 2, self.shape.answers)
        text = self.model.generate(**prompts, do_sample=True, max_new_tokens=answers)
        self.model.train()
        return text

    def loss(self, text, begin, rewards):
        """The answers' chances, weighed by how good they are said to be."""
        logits = self.model(input_ids=text).logits[:, begin - 1 : -1].float()
        chances = logits.log_softmax(-1).gather(-1, text[:, begin:, None]).squeeze(-1)
        return -(chances.mean(-1) * rewards).mean()

    def iteration(self, number):
        prompts = common.on(self.options.device, self.ask(number))
        text = self.answered(prompts)
        begin = prompts["input_ids"].shape[1]
        rewards = (text[:, begin:] % 7).float().mean(-1)
        rewards = rewards - rewards.mean()
        total = torch.zeros((), device=self.options.device)
        for part, reward in zip(text.chunk(self.shape.microbatches), rewards.chunk(self.shape.microbatches)):
            loss = self.loss(part, begin, reward)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            total += loss.detach()
        return total

    def describe(self):
        return {"drawn": dict(vars(self.shape)), "weights": common.count(self.model)}


def rollouts(options):
    draw = common.Draw(options)
    hidden = draw.step(1280, 2048, 256)
    return Rollouts(options, common.shape(
        options, dict(decoders.TINY, rows=4, answers=6), layers=draw.step(6, 10, 1),
        hidden=hidden, inner=hidden * 11 // 4 // 128 * 128, heads=hidden // 128,
        groups=draw.choice((1, 2, 4)), most=draw.choice((256, 512, 768)), rows=draw.step(16, 32, 8),
        answers=draw.choice((24, 32, 48)), microbatches=draw.choice((2, 4)),
        lengths=draw.choice(common.LENGTHS), optimizer=draw.choice(common.OPTIMIZERS[:2]),
    ))  # fmt: skip
