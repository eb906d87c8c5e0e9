"""Loops that train something else where the library sees nothing, and which `gpq check` finds: by shapes of the table.

`make planted` holds each against the verdict of `gpq check`.
"""

ALL = ("accumulate", "split", "two", "two-acc", "resize")
PROVEN: dict[str, tuple[str, ...]] = {
    "clamp-activations": ALL,
    "clamp-in-module": ALL,
    "hardest-by-mean": ALL,
    "advantages": ALL,
    "weight-by-gradients": ALL,
    "first-ten": ALL,
    "halves-mixed": ("split", "two", "resize"),
    "pairs-compared": ("two", "resize"),
    "pairs-of-passes": ("two", "resize"),
    "bank-refilled": ("accumulate", "two-acc"),
    "bank-in-place": ("accumulate", "two-acc"),
    "hidden-state": ALL,
    "attribute-of-the-model": ALL,
    "gradients-kept": ("accumulate", "split", "two-acc", "resize"),
    "gradients-cloned": ("accumulate", "split", "two-acc", "resize"),
    "baseline": ALL,
    "baseline-number": ALL,
    "temperature-counted": ("accumulate", "split", "two-acc", "resize"),
    "clip-by-history": ("accumulate", "split", "two-acc", "resize"),
    "noise-of-its-own": ("accumulate", "two", "two-acc", "resize"),
    "gradient-noise-of-its-own": ("accumulate", "split", "two-acc", "resize"),
    "mixed-with-neighbours": ALL,
    "zip-other-loader": ("split", "resize"),
    "zip-other-enumerate": ("resize",),
    "takewhile-counts": ("resize",),
    "head-halves-rate": ("resize",),
    "head-copies-model": ("resize",),
}
