"""transformers' Trainer as a job: it has the loop, a callback says when an iteration ended."""

import tempfile

from transformers import Trainer, TrainerCallback, TrainingArguments

from libraries import common

OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd")


class Ends(TrainerCallback):
    """Tells the laps each step's loss, which Trainer logs once it is there."""

    def __init__(self, laps):
        self.laps = laps

    def on_log(self, args, state, control, logs=None, **named):
        if "loss" in logs:
            self.laps.ended(logs["loss"])


class Training:
    """A model, data and the arguments that a job has of its own."""

    def __init__(self, options, shape, model, data, collate, **arguments):
        self.shape, self.model = shape, model
        self.folder = tempfile.TemporaryDirectory()
        self.arguments = TrainingArguments(
            output_dir=self.folder.name,
            max_steps=options.iterations,
            per_device_train_batch_size=shape.rows,
            gradient_accumulation_steps=shape.microbatches,
            optim=shape.optimizer,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            bf16=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=options.seed,
            use_cpu=not options.cuda,
            **arguments,
        )
        self.data, self.collate = data, collate
        self.evaluated = None

    def train(self, laps):
        Trainer(
            model=self.model,
            args=self.arguments,
            train_dataset=self.data,
            eval_dataset=self.evaluated,
            data_collator=self.collate,
            callbacks=[Ends(laps)],
        ).train()

    def describe(self):
        return {"drawn": dict(vars(self.shape)), "weights": common.count(self.model)}
