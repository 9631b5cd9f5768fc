"""What a choice of blocks would take, against what a recording of that choice takes: recompute_foretold.py. Skips where
there is no torch ($PLEAT_TORCH_PYTHON: a Python that has it); $PLEAT_COMMAND: the command."""

import contextlib
import json
import os
import subprocess
import tempfile
import unittest

import recompute_parts  # first: it knows where the package is
import suite
from pleat._recompute import Recompute
from pleat._recompute.offload import Offload
from pleat._recompute.recompute import AGAIN, ATTENTION, CHOSEN, OFFLOAD
from pleat._recompute.world import options
from recompute_parts import COMMAND, Copies, World, explain

torch = recompute_parts.torch
if torch is not None:
    from torch import nn

LAYERS = 4  # of the model that is recorded


class Nowhere(Copies):
    """Takes what it is given, and has room for anything."""

    def host(self, bytes):
        return range(bytes)

    def copy(self, pairs, device):
        return object()


@unittest.skipIf(torch is None, "no torch")
@unittest.skipUnless(os.access(COMMAND, os.X_OK), "no command")
class Recordings(unittest.TestCase):
    """Fake tensors have shapes and lives, and a recording of them is one of a job of any size."""

    def record(self, path, ways=None, budget=1 << 50):
        import fake
        from torch._subclasses.fake_tensor import FakeTensorMode

        recorder = fake.Recorder(path)

        class Recorded(World):
            @contextlib.contextmanager
            def phase(self, name):
                outer = recorder.text
                recorder.set_label(outer.partition(";")[0] + ";phase=" + name)
                try:
                    yield
                finally:
                    recorder.set_label(outer)

            def timer(self):
                return lambda: lambda: 1000

            def ladder(self, costs, budget):
                recorder.finish()
                # Two thirds of a block's forward are attention, and what a block saves takes one and a half to copy.
                costs.update(block_ns=[3000] * LAYERS, attention_ns=[2000] * LAYERS, link=0)
                made = explain(path, budget, *options(costs))
                costs["link"] = int(max(block["saved_bytes"] for block in made["blocks"]) / 4500e-9)
                return explain(path, budget, *options(costs))

        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                wide = dict(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True, dropout=0.0,
                            norm_first=True)
                self.layers = nn.ModuleList(nn.TransformerEncoderLayer(**wide) for _ in range(LAYERS))
                self.head = nn.Linear(512, 4096)

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)

        with FakeTensorMode(), fake.Watch(recorder):
            model = Deep()
            world = Recorded()
            made = Recompute(torch, budget, world)
            if ways is not None:
                made.looking.remove()
                made.add(model, ())
                made.state, made.ways, made.chosen, made.begins = CHOSEN, ways, range(LAYERS), lambda *called: None
                made.offload = Offload(torch, Nowhere(), self.fail)
            optimizer = torch.optim.AdamW(model.parameters())
            for i in range(3 if ways is None else 2):
                recorder.set_label("iter=%d;phase=F" % i)
                loss = model(torch.empty(16, 256, 512)).square().mean()
                recorder.set_label("iter=%d;phase=B" % i)
                loss.backward()
                del loss
                recorder.set_label("iter=%d;phase=O" % i)
                optimizer.step()
                optimizer.zero_grad()
                if ways is None:
                    made.mark()
                    if made.state == CHOSEN:
                        break
                else:
                    made.offload.end()
        if ways is not None:
            recorder.finish()
        return made, world

    def live(self, folder, name, ways):
        """What an iteration takes whose blocks go so."""
        path = os.path.join(folder, name + ".pickle.gz")
        self.record(path, ways)
        plan = subprocess.run([COMMAND, "plan", path, "--json", "-o", path + ".plan"], stdout=subprocess.PIPE, check=True)
        return json.loads(plan.stdout)["max_live_bytes"]

    def test_a_choice_takes_what_was_foretold(self):
        with tempfile.TemporaryDirectory() as folder:
            learned = os.path.join(folder, "learned.pickle.gz")
            made, world = self.record(learned)
            ladder, rungs = made.ladder, made.ladder.rungs
            self.assertEqual((ladder.blocks, made.rung), (LAYERS, 0))
            self.assertGreater(rungs[0]["live_bytes"], 1.3 * rungs[-1]["live_bytes"])
            # What is hidden goes first, then what costs least for its bytes, and in the end everything runs again.
            self.assertEqual(ladder.order[0], (0, OFFLOAD, 2))
            self.assertIn(ATTENTION, [way for _, way, _ in ladder.order])
            self.assertEqual(ladder.ways(len(rungs) - 1), {number: (AGAIN, None) for number in range(LAYERS)})
            for rung in (0, 1, 3, 5):
                live = self.live(folder, "rung%d" % rung, ladder.ways(rung))
                # A checkpoint holds a block's input, which a block that is kept may not save.
                self.assertLessEqual(live, 1.0005 * rungs[rung]["live_bytes"], rung)
                self.assertGreater(live, 0.97 * rungs[rung]["live_bytes"], rung)
            self.assert_budgets(learned)

    def assert_budgets(self, learned):
        rungs = explain(learned, 1 << 50)["rungs"]
        # A budget between two rungs: the first that a plan fits.
        budget = (rungs[1]["live_bytes"] + rungs[2]["live_bytes"]) // 2
        answer = explain(learned, budget)
        self.assertTrue(answer["fits"])
        self.assertEqual(answer["rung"], 2)
        self.assertLessEqual(answer["rungs"][2]["physical_bytes"], budget)
        # None that can work: the smallest is told, and works.
        answer = explain(learned, rungs[-1]["live_bytes"] // 2)
        self.assertFalse(answer["fits"])
        self.assertTrue(explain(learned, answer["smallest_bytes"])["fits"])
        text = subprocess.run([COMMAND, "explain", learned, "--budget", str(budget)], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        self.assertIn("2 of 4 blocks are computed again", text)


if __name__ == "__main__":
    suite.main(needs_torch=True)
