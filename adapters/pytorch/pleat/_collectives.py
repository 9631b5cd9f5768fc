"""Under `pleat estimate`: torch.distributed without other GPUs, and without what ranks send each other.

Each process takes the place of its rank, on a GPU of its own, and its collectives do nothing: what they return has the
right size, which is all that counts. torch has such a backend for its own tests. Process groups of the host alone
(gloo) are real.
"""

import functools
import os


def is_of_gpus(backend):
    return backend is None or "nccl" in str(backend).lower() or "cuda" in str(backend).lower()


def stand(torch):
    """From now on no process group of GPUs talks to another. pre: CUDA is not used yet."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    if ranks.isdigit():
        os.environ["PLEAT_NO_GPU_DEVICES"] = ranks
    distributed = torch.distributed
    if not distributed.is_available():
        return
    from torch.nn.parallel import distributed as parallel

    begin = distributed.init_process_group

    @functools.wraps(begin)
    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, **named):
        if not is_of_gpus(backend):
            return begin(backend, init_method, timeout, world_size, rank, store, **named)
        from torch.testing._internal.distributed import fake_pg  # which makes the backend known

        if rank < 0:
            rank = int(os.environ.get("RANK", "0"))
        if world_size < 0:
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
        return begin("fake", rank=rank, world_size=world_size, store=fake_pg.FakeStore())

    distributed.init_process_group = distributed.distributed_c10d.init_process_group = init_process_group
    stand_for_ddp(torch, parallel)


def stand_for_ddp(torch, parallel):
    """DDP reads what the first rank sent, and gradients' sums of a collective's answer, which has none here."""
    DDP = parallel.DistributedDataParallel
    begin, register = DDP.__init__, DDP.register_comm_hook

    def same(_, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    @functools.wraps(begin)
    def made(self, *arguments, **named):
        begin(self, *arguments, **named)
        register(self, None, same)

    parallel._verify_param_shape_across_processes = lambda *arguments, **named: None
    DDP.__init__, DDP.register_comm_hook = made, lambda *arguments, **named: None
