"""Prints tables whose columns are as wide as what is in them, and says how figures are distributed."""


def print_table(headings, rows):
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
    for row in (headings, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def quantile(values, share):
    """The value below which `share` of them lie: one of them, as in `pleat bench`."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


SHARES = (("min", 0), ("5 %", 0.05), ("25 %", 0.25), ("median", 0.5), ("75 %", 0.75), ("95 %", 0.95),
          ("max", 1))


def distribution(values):
    return {name: quantile(values, share) for name, share in SHARES} if values else {}
