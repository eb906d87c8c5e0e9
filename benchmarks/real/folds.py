"""Cross-validates a network of scikit-learn on the handwritten digits. It does not know gpq.

Exits with 1 if the mean accuracy on the held-out folds misses the target. `--processes` trains so
many folds at once.
"""

import argparse
import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier

TARGET = 0.94


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--width", type=int, default=256, help="units of the hidden layer")
    parser.add_argument("--processes", type=int, default=1, help="folds to train at once")
    options = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    network = MLPClassifier(
        options.width, max_iter=options.epochs, n_iter_no_change=options.epochs, random_state=0
    )
    scores = cross_val_score(
        network, images / 16, labels, cv=options.folds, n_jobs=options.processes
    )
    print(f"accuracy {scores.mean():.4f}, target {TARGET}", flush=True)
    return 0 if scores.mean() >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
