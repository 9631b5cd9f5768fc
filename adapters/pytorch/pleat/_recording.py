"""Under `pleat estimate`: what a process records, on the disk while it runs, as one of torch's memory snapshots.

A pickle grows as the events come: each batch of them is a list's items, of which there may be any number. It has its name
when it is whole; until then it is FILE.part, which is open for no longer than a batch is written: a program may close all
descriptors that it does not know, and have another file by the same number.
"""

import os
import pickle

EVENTS_MOST = 4 << 20  # as many as a runtime records where nothing else is said (D537)
BATCH = 4096  # events in memory (D537)
PROTOCOL = 2  # the last one without frames, which say how long they are
# {"segments": [], "device_traces": [[ and ]]}, between which the events are.
HEAD = b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]]"
TAIL = b"au."
LIST, END = pickle.dumps([], PROTOCOL)[:-1], b"."  # around a list's items


class Recording:
    """Who adds to it holds a lock of his own."""

    def __init__(self, path):
        self.path = path
        self.is_begun = False  # with the first batch
        self.batch = []
        self.count = 0  # of events, those included that are not kept
        self.failure = None  # why nothing is written any more: an OSError
        self.is_left = False  # this process is a fork of the one that records

    def add(self, event):
        """Whether it is the last one that there is room for."""
        self.count += 1
        if self.count > EVENTS_MOST or self.failure is not None or self.is_left:
            return False
        self.batch.append(event)
        if len(self.batch) == BATCH:
            self.write_batch()
        return self.count == EVENTS_MOST

    def write_batch(self):
        items = pickle.dumps(self.batch, PROTOCOL)[len(LIST):-len(END)]
        self.batch.clear()
        self.write(items)

    def write(self, bytes):
        """An error is kept: events come where nobody takes it, when a tensor ends."""
        try:
            with open(self.path + ".part", "ab" if self.is_begun else "wb") as file:
                file.write(bytes if self.is_begun else HEAD + bytes)
            self.is_begun = True
        except OSError as problem:
            self.failure = self.failure or problem

    def leave(self):
        """In a forked child the file is its parent's; and at its end, from which on it has no more events."""
        self.is_left = True

    def finish(self):
        """The file is whole. OSError: it is not, and is none."""
        if self.batch:
            self.write_batch()
        self.write(TAIL)
        if self.failure is not None:
            raise self.failure
        os.rename(self.path + ".part", self.path)
