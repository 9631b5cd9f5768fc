"""Pleat as torch's allocator, on a real GPU: gpu.py [TEST ...]. Skips where there is none.

One process: torch takes another allocator only once. What must equal native's results is compared
with results that do not depend on the allocator.
"""

import inspect
import os
import pickle
import tempfile
import threading
import unittest

import here  # first: it knows where the package is
from torch_or_none import torch
import pleat

os.environ.setdefault("PLEAT_CONF", "keep:off")  # no test is to be another one in its second run

MIB = 1 << 20
READY = torch is not None and torch.version.cuda is not None and torch.cuda.is_available()


def take(mebibytes, value=None):
    tensor = torch.empty(mebibytes * MIB // 4, dtype=torch.int32, device="cuda")
    return tensor if value is None else tensor.fill_(value)


def settle():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def answer(there, back):
    """Another process: what test_tensors_go_to_another_process_and_back talks to."""
    pleat.enable()
    for tensor in iter(there.get, None):
        total = tensor.sum().item()
        tensor.fill_(-1)
        torch.cuda.synchronize()
        del tensor
        other = take(3, 5)
        back.put((total, other))
        there.get()
        del other
        back.put("gone")


@unittest.skipUnless(READY, "no torch with CUDA, or no GPU")
class Gpu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pleat.enable()
        torch.cuda.init()

    def test_statistics(self):
        self.assertEqual(torch.cuda.get_allocator_backend(), "pleat")
        settle()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        a, b = take(40), take(60)
        self.assertEqual(torch.cuda.memory_allocated() - before, 100 * MIB)
        del a
        self.assertEqual(torch.cuda.memory_allocated() - before, 60 * MIB)
        self.assertEqual(torch.cuda.max_memory_allocated() - before, 100 * MIB)
        self.assertGreaterEqual(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
        self.assertGreaterEqual(torch.cuda.max_memory_reserved(), before + 100 * MIB)
        stats = torch.cuda.memory_stats()
        for kind in ("allocation", "segment", "active", "inactive_split", "allocated_bytes",
                     "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"):
            for pool in ("all", "small_pool", "large_pool"):
                for what in ("current", "peak", "allocated", "freed"):
                    self.assertIn("%s.%s.%s" % (kind, pool, what), stats)
        for kind in ("allocation", "allocated_bytes"):
            self.assertEqual(stats[kind + ".all.allocated"] - stats[kind + ".all.freed"],
                             stats[kind + ".all.current"])
        torch.cuda.reset_peak_memory_stats()
        self.assertEqual(torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated())
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        for kind in ("allocation", "allocated_bytes", "segment", "reserved_bytes"):
            self.assertEqual(stats[kind + ".all.allocated"], 0, kind)
            self.assertEqual(stats[kind + ".all.freed"], 0, kind)
        self.assertIn("Allocated memory", torch.cuda.memory_summary())
        del b
        reserved = torch.cuda.memory_reserved()
        settle()
        self.assertLess(torch.cuda.memory_reserved(), reserved)
        self.assertEqual(torch.cuda.memory_stats()["reserved_bytes.all.freed"]
                         - torch.cuda.memory_stats()["reserved_bytes.all.allocated"],
                         reserved - torch.cuda.memory_reserved())
        self.assertEqual(torch.cuda.memory_allocated(), before)
        free, total = torch.cuda.mem_get_info()
        self.assertLess(free, total)
        self.assertGreater(pleat.stats()["requests"], 0)

    def test_out_of_memory(self):
        seen = []

        def told(*arguments):
            seen.append(arguments)
            pleat._library.pleat_torch_remedy(b"take less")

        torch._C._cuda_attach_out_of_memory_observer(told)
        with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, r"CUDA out of memory.*\. take less"):
            torch.empty(1 << 48, dtype=torch.uint8, device="cuda")
        self.assertEqual(seen[0][1], 1 << 48)
        self.assertGreater(torch.cuda.memory_stats()["num_ooms"], 0)
        self.assertEqual(take(4, 7).sum().item(), 7 * MIB)

    def test_memory_fraction(self):
        settle()
        total = torch.cuda.mem_get_info()[1]
        held = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction((held + 300 * MIB) / total)
        try:
            if hasattr(torch.cuda, "get_per_process_memory_fraction"):
                self.assertAlmostEqual(torch.cuda.get_per_process_memory_fraction() * total,
                                       held + 300 * MIB, delta=4 * MIB)
            self.assertEqual(take(200, 1)[-1].item(), 1)
            with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, "CUDA out of memory"):
                take(held // MIB + 400)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        self.assertEqual(take(400).numel(), 100 * MIB)

    def test_raw_allocation(self):
        before = torch.cuda.memory_allocated()
        address = torch.cuda.caching_allocator_alloc(3 * MIB)
        self.assertEqual(torch.cuda.memory_allocated() - before, 3 * MIB)
        torch.cuda.caching_allocator_delete(address)
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_side_streams_keep_what_they_use(self):
        """Memory recorded on a stream is not reused before that stream has read it."""
        sides = [torch.cuda.Stream() for _ in range(3)]
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        sums = []
        for step in range(60):
            tensor = take(8, step)
            for side in sides:
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(200000)
                    sums.append((tensor != step).sum())
                tensor.record_stream(side)
            del tensor
            take(8, -1)  # would be written over it
        torch.cuda.synchronize()
        for each in sums:
            wrong += each
        self.assertEqual(wrong.item(), 0)

    def test_graph_replays_while_tensors_come_and_go(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(),
                                    torch.nn.Linear(1024, 256)).cuda()
        given = torch.randn(64, 256, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            got = model(given)
        other, wrong = [], torch.zeros((), device="cuda")
        for step in range(1000):
            fresh = torch.randn(64, 256, device="cuda")
            given.copy_(fresh)
            graph.replay()
            if step % 50 == 0:
                with torch.no_grad():
                    wrong = torch.maximum(wrong, (got - model(fresh)).abs().max())
            other.append(take(1 + step % 7, step))
            if len(other) > 9:
                del other[step % 9]
        self.assertLess(wrong.item(), 1e-4)
        del graph, got, other

    def test_other_threads_allocate_while_a_graph_is_captured(self):
        said = []

        def churn():
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for step in range(50):
                        take(3 + step, step)
            except Exception as problem:  # a thread's failure is the test's
                said.append(problem)

        graph = torch.cuda.CUDAGraph()
        x = torch.ones(1000, device="cuda")
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = x * 2
            thread = threading.Thread(target=churn)
            thread.start()
            thread.join()
            z = y + 1
        graph.replay()
        self.assertEqual(said, [])
        self.assertEqual(z.sum().item(), 3000)

    def test_memory_pool(self):
        pool = torch.cuda.MemPool()
        before = torch.cuda.memory_allocated()
        with torch.cuda.use_mem_pool(pool):
            inside = take(32, 5)
        outside = take(16, 6)
        self.assertEqual(torch.cuda.memory_allocated() - before, 48 * MIB)
        self.assertEqual(inside.sum().item() + outside.sum().item(), 5 * 8 * MIB + 6 * 4 * MIB)
        inside.record_stream(torch.cuda.Stream())
        del inside, outside
        self.assertEqual(torch.cuda.memory_allocated(), before)
        del pool

    def test_peaks_of_pools_and_the_rest_are_not_simply_added(self):
        settle()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        big = take(100)
        del big
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            small = take(50)
        self.assertEqual(torch.cuda.max_memory_allocated() - before, 100 * MIB)
        del small

    def test_snapshot(self):
        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            kept, gone = take(24, 1), take(40, 2)
            address = kept.data_ptr()
            del gone
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "s.pickle")
                torch.cuda.memory._dump_snapshot(path)
                with open(path, "rb") as file:
                    snapshot = pickle.load(file)
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        blocks = {}
        for segment in snapshot["segments"]:
            self.assertEqual(sum(b["size"] for b in segment["blocks"]), segment["total_size"])
            for block in segment["blocks"]:
                blocks[block["address"]] = block
        self.assertEqual(blocks[address]["state"], "active_allocated")
        self.assertEqual(blocks[address]["requested_size"], 24 * MIB)
        self.assertTrue(any("take" in f["name"] for f in blocks[address]["frames"]))
        actions = [(e["action"], e["size"]) for e in snapshot["device_traces"][0]]
        for event in [("alloc", 24 * MIB), ("alloc", 40 * MIB), ("free_completed", 40 * MIB)]:
            self.assertIn(event, actions)
        from torch.cuda import _memory_viz

        self.assertIn("html", _memory_viz.trace_plot(snapshot))
        self.assertTrue(_memory_viz.segsum(snapshot))
        self.assertTrue(torch.cuda.memory_snapshot())

    def test_convolutions_with_benchmark(self):
        torch.backends.cudnn.benchmark = True
        try:
            x = torch.ones(8, 16, 64, 64, device="cuda")
            y = torch.nn.functional.conv2d(x, torch.ones(4, 16, 3, 3, device="cuda"))
            self.assertEqual(y[0, 0, 0, 0].item(), 16 * 9)
        finally:
            torch.backends.cudnn.benchmark = False

    def test_tensors_go_to_another_process_and_back(self):
        """Both ways: the other process sums what it gets, writes into it and sends one of its own."""
        context = torch.multiprocessing.get_context("spawn")
        there, back = context.Queue(), context.Queue()
        process = context.Process(target=answer, args=(there, back))
        process.start()
        try:
            for mebibytes in (1, 7, 300):
                tensor = take(mebibytes, mebibytes)
                part = tensor[1000:]
                there.put(part)
                total, other = back.get(timeout=120)
                self.assertEqual(total, mebibytes * part.numel())
                self.assertEqual(other.sum().item(), 3 * MIB // 4 * 5)
                del other
                there.put("seen")
                self.assertEqual(back.get(timeout=120), "gone")
                torch.cuda.synchronize()
                self.assertEqual(tensor[0].item(), mebibytes)
                self.assertEqual(part[0].item(), -1)
                del tensor, part
        finally:
            there.put(None)
            process.join(60)
        self.assertEqual(process.exitcode, 0)

    def test_memory_from_a_stranger_is_refused(self):
        handle = b"pleat1 pleat-0-nobody 17"
        with self.assertRaisesRegex(RuntimeError, "the sending process is gone"):
            torch.UntypedStorage._new_shared_cuda(0, handle, 512, 0, b"", 0, b"", False)

    def test_frees_are_complete_when_the_streams_are(self):
        side = torch.cuda.Stream()
        settle()
        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            tensor = take(24, 1)
            with torch.cuda.stream(side):
                torch.cuda._sleep(500000000)
            tensor.record_stream(side)
            del tensor
            other = take(2)
            actions = [(e["action"], e["size"]) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
            self.assertIn(("free_requested", 24 * MIB), actions)
            self.assertNotIn(("free_completed", 24 * MIB), actions)
            stats = torch.cuda.memory_stats()
            waiting = stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]
            self.assertEqual(waiting, 24 * MIB)
            self.assertEqual(stats["active.all.current"] - stats["allocation.all.current"], 1)
            torch.cuda.synchronize()
            other = take(4)
            stats = torch.cuda.memory_stats()
            self.assertEqual(stats["active_bytes.all.current"], stats["allocated_bytes.all.current"])
            actions = [(e["action"], e["size"]) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
            self.assertIn(("free_completed", 24 * MIB), actions)
            del other
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def test_a_capture_uses_what_is_freed_meanwhile(self):
        """Nothing of it is in the graph, and the memory comes back when the capture is over."""
        settle()
        given, into = take(24, 3), torch.zeros((), dtype=torch.int64, device="cuda")
        graph = torch.cuda.CUDAGraph()
        torch.cuda.memory._record_memory_history(max_entries=1000)
        try:
            with torch.cuda.graph(graph):
                into.add_(1)
                given.record_stream(torch.cuda.current_stream())
                del given
                take(2)
            graph.replay()
            torch.cuda.synchronize()
            other = take(4)
            actions = [(e["action"], e["size"]) for e in torch.cuda.memory._snapshot()["device_traces"][0]]
            self.assertIn(("free_completed", 24 * MIB), actions)
            self.assertEqual(into.item(), 1)
            del other
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    def test_the_budget_holds_for_pools_and_the_rest_together(self):
        settle()
        total = torch.cuda.mem_get_info()[1]
        held = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction((held + 400 * MIB) / total)
        pool = torch.cuda.MemPool()
        try:
            outside = take(200, 1)
            with torch.cuda.use_mem_pool(pool):
                inside = take(150, 2)
                with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, "CUDA out of memory"):
                    take(100)
            with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, "CUDA out of memory"):
                take(100)
            self.assertLessEqual(torch.cuda.memory_reserved(), held + 400 * MIB)
            del outside
            # What one gives up the other can have.
            with torch.cuda.use_mem_pool(pool):
                more = take(160, 3)
            self.assertEqual(inside[-1].item() + more[-1].item(), 5)
            del more, inside, pool
            self.assertEqual(take(350, 4)[-1].item(), 4)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    @unittest.skipUnless(READY and "use_on_oom" in inspect.signature(torch.cuda.MemPool).parameters,
                         "this torch's pools do not lend")
    def test_a_pool_lends_its_memory_before_memory_is_refused(self):
        settle()
        total = torch.cuda.mem_get_info()[1]
        held = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction((held + 400 * MIB) / total)
        pool = torch.cuda.MemPool(use_on_oom=True)
        try:
            with torch.cuda.use_mem_pool(pool):
                inside = take(200, 1)
            del inside  # free, and the pool's
            outside, lent = take(150, 2), take(150, 3)
            self.assertEqual(outside[-1].item() + lent[-1].item(), 5)
            self.assertLessEqual(torch.cuda.memory_reserved(), held + 400 * MIB)
            with self.assertRaisesRegex(torch.cuda.OutOfMemoryError, "CUDA out of memory"):
                take(150)
            del outside, lent, pool
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)

    def test_segments_are_what_the_device_gave(self):
        settle()
        before = torch.cuda.memory_stats()
        tensor = take(64)
        after = torch.cuda.memory_stats()
        grown = after["reserved_bytes.all.current"] - before["reserved_bytes.all.current"]
        self.assertGreaterEqual(grown, 60 * MIB)
        self.assertGreater(after["segment.all.current"], before["segment.all.current"])
        self.assertGreater(after["num_device_alloc"], before["num_device_alloc"])
        del tensor
        self.assertGreaterEqual(torch.cuda.memory_stats()["inactive_split_bytes.all.current"], 64 * MIB)
        settle()
        last = torch.cuda.memory_stats()
        self.assertEqual(last["segment.all.allocated"] - last["segment.all.freed"],
                         last["segment.all.current"])
        self.assertLess(last["segment.all.current"], after["segment.all.current"])

    def test_profiler_sees_memory(self):
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            tensor = take(48)
            del tensor
        events = [e for e in seen.events() if e.name == "[memory]"]
        sizes = [getattr(e, "device_memory_usage", None) or getattr(e, "cuda_memory_usage", 0)
                 for e in seen.events()]
        self.assertTrue(events or any(sizes))
        self.assertIn(48 * MIB, [abs(s) for s in sizes])

    def test_what_was_recorded_becomes_a_plan(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "record"):
                pleat.save_plan(os.path.join(folder, "p.plan"))

    def test_compiled_with_reduced_overhead(self):
        torch.manual_seed(2)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(),
                                    torch.nn.Linear(256, 64)).cuda()
        compiled = torch.compile(model, mode="reduce-overhead")
        for step in range(12):
            x = torch.randn(32, 64, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            loss = compiled(x).square().mean()
            loss.backward()
            got = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            model(x).square().mean().backward()
            for mine, right in zip(got, (p.grad for p in model.parameters())):
                torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4)
            model.zero_grad()
            take(1 + step, step)

    def test_marks_and_phases(self):
        weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for step in range(6):
            with pleat.phase("forward"):
                loss = (weight * take(4, 1)[:1024]).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        pleat.mark_step()
        self.assertEqual(weight[0].item(), 1 - 6 * 0.5)
        self.assertIn("physical", pleat.report())


if __name__ == "__main__":
    unittest.main(verbosity=2)
