"""The memory whose history becomes a torch snapshot: events with addresses, streams and times."""

import gzip
import pickle

import recording

ALLOC, REQUESTED, COMPLETED = "alloc", "free_requested", "free_completed"


class Memory:
    """No address comes twice, so that the recording prescribes no placement."""

    def __init__(self):
        self.events = []
        self.address = 1 << 40
        self.now = 0.0
        self.label = ""
        self.live = 0
        self.peak = 0
        self.pending = []  # (when it is complete, block): frees that another stream delays

    def spend(self, us):
        self.now += us

    def alloc(self, size, stream=0):
        """A block: (address, bytes, stream)."""
        if self.pending:
            self.settle(self.now)
        address = self.address
        self.address = address + (size + 1023) // 512 * 512
        self.events.append((ALLOC, address, size, stream, int(self.now), self.label))
        self.live += size
        if self.live > self.peak:
            self.peak = self.live
        return (address, size, stream)

    def free(self, block):
        address, size, stream = block
        now = int(self.now)
        self.live -= size
        self.events.append((REQUESTED, address, size, stream, now, self.label))
        self.events.append((COMPLETED, address, size, stream, now, self.label))

    def free_after(self, block, us):
        """A free of what another stream still uses for so long (record_stream)."""
        address, size, stream = block
        self.events.append((REQUESTED, address, size, stream, int(self.now), self.label))
        self.pending.append((self.now + us, block))

    def settle(self, until):
        """Completes frees whose streams are done, as torch does when it is asked for memory."""
        left = []
        for when, block in self.pending:
            if when > until:
                left.append((when, block))
                continue
            address, size, stream = block
            self.live -= size
            self.events.append((COMPLETED, address, size, stream, int(self.now), self.label))
        self.pending = left

    def snapshot(self, labels=True):
        keys = ("action", "addr", "size", "stream", "time_us", "user_metadata")
        keys = keys if labels else keys[:-1]
        return {
            "segments": [],
            "device_traces": [[dict(zip(keys, event)) for event in self.events]],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def write(self, path, labels=True):
        """Writes the snapshot, whole or not at all; gzipped where the name says so. Returns its size."""
        data = pickle.dumps(self.snapshot(labels), 4)
        if path.endswith(".gz"):
            data = gzip.compress(data, 4, mtime=0)  # no time in it: the same job gives the same bytes
        with recording.whole(path) as raw:
            return raw.write(data)
