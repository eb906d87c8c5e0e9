"""Loops that train something else where the library sees nothing.

PROVEN: `gpq check` finds them, in these shapes of the table. `make planted` holds each against its verdict.
HINTED: they end by what a restart forgets, later than a check looks. Their source tells, and what it hints
at: `tests/test_lint.py`.
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
    "islice-some": ("resize",),
    "islice-enumerate": ("resize",),
    "zip-range-short": ("resize",),
    "coefficient-counted": ("accumulate", "split", "two-acc", "resize"),
    "coefficient-whole": ("accumulate", "split", "two-acc", "resize"),
    "coefficient-tensor": ("accumulate", "split", "two-acc", "resize"),
    "loss-by-index": ("accumulate", "split", "two-acc", "resize"),
    "loss-later": ("accumulate", "split", "two-acc", "resize"),
    "loss-at-the-end": ("accumulate", "split", "two-acc", "resize"),
    "head-halves-rate": ("resize",),
    "head-copies-model": ("resize",),
}
HINTED = {
    "patience": "bad",
    "patience-object": "stopper",
    "patience-attribute": "stopper",
    "patience-trainer": "self.bad",
    "patience-history": "history",
    "epochs-numbered": "number",
    "steps-counted": "steps",
}
