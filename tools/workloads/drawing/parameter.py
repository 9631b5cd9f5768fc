"""A weight of a model."""


class Shaped:
    """What has a shape, and elements of so many bytes."""

    __slots__ = ()

    @property
    def count(self):
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def size(self):
        return self.count * self.item


class Parameter(Shaped):
    """A weight that stays: its number in the model, its shape and the bytes of an element."""

    __slots__ = ("number", "shape", "item", "trained", "scaled", "place")

    def __init__(self, number, shape, item, trained=True):
        self.number = number
        self.shape = tuple(shape)
        self.item = item
        self.trained = trained
        self.scaled = False  # made from another that is scaled
        self.place = number  # among the model's parameters
