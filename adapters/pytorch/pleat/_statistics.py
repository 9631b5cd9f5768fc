"""Under `pleat estimate`: torch's statistics of memory, of what was recorded."""

SMALL_BYTES_MOST = 1 << 20  # of what torch takes for the small pool
POOLS = ("all", "small_pool", "large_pool")


class Counter:
    """One of torch's, under its keys."""

    def __init__(self):
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount):
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def take(self, amount):
        self.current -= amount
        self.freed += amount


class Statistics:
    def __init__(self):
        self.bytes, self.asked, self.count = ({pool: Counter() for pool in POOLS} for _ in range(3))

    def of(self, bytes, rounded):
        """The counters of a tensor, and what it is for each."""
        for pool in POOLS[0], POOLS[1] if bytes <= SMALL_BYTES_MOST else POOLS[2]:
            yield self.bytes[pool], rounded
            yield self.asked[pool], bytes
            yield self.count[pool], 1

    def counters(self):
        return [one for kind in (self.bytes, self.asked, self.count) for one in kind.values()]

    def reset_peaks(self, *_):
        for one in self.counters():
            one.peak = one.current

    def reset_sums(self, *_):
        for one in self.counters():
            one.allocated = one.freed = 0

    def told(self, empty):
        """In torch's dict of an allocator that has served nothing; no cache is reckoned."""
        for kind, names in ((self.bytes, ("allocated_bytes", "active_bytes", "reserved_bytes")),
                            (self.asked, ("requested_bytes",)), (self.count, ("allocation", "active"))):
            for name in names:
                empty[name] = {pool: dict(vars(one)) for pool, one in kind.items()}
        return empty


def stand(torch, statistics):
    """From now on torch tells these. They are of the one GPU that a process has."""
    own = torch._C._cuda_memoryStats
    for names, function in ((("_cuda_memoryStats", "_accelerator_getDeviceStats"), lambda device: statistics.told(own(device))),
                            (("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"), statistics.reset_peaks),
                            (("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"),
                             statistics.reset_sums)):
        for name in names:
            setattr(torch._C, name, function)
