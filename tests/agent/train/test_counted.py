"""Counts of a loop's own: those that what it trains hangs on, and those that only show something."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpq_agent.train import counted

HEAD = """
class Thing:
    def __call__(self, *_): return self
    def __getattr__(self, _): return self
    def __truediv__(self, _): return self
    __mul__ = __add__ = __rmul__ = __radd__ = __sub__ = __truediv__
    def __float__(self): return 0.0
    def __ge__(self, _): return True
model = optimizer = criterion = scaler = job = writer = Thing()
count = 0
"""
HANGING = {
    "every fifth": """
for i, x in enumerate(loader):
    loss = criterion(model(x))
    if i % 5 == 0:
        loss = loss + model.penalty()
    loss.backward()
""",
    "later": """
for x in loader:
    loss = criterion(model(x))
    if count >= 8:
        loss += model.penalty()
    scaler.scale(loss).backward()
    count += 1
""",
    "in two steps": """
for x in loader:
    count += 1
    beta = min(1.0, count / 100)
    part = beta * model.kl()
    loss = criterion(model(x)) + part
    loss.backward()
""",
    "either": """
for i, x in enumerate(loader, 1):
    if i < 100:
        loss = criterion(model(x))
    else:
        loss = criterion(model(x), 2)
    (loss / 2).backward()
""",
    "which input": """
for i, x in enumerate(loader):
    if i % 2:
        x = x * -1
    loss = criterion(model(x))
    loss.backward()
""",
}
SHOWING = {
    "the tutorial": """
for batch, x in enumerate(loader):
    loss = criterion(model(x))
    loss.backward()
    optimizer.step()
    if batch % 100 == 0:
        loss, current = loss.item(), batch * 64
        print(loss, current, end="")
""",
    "a log": """
for i, x in enumerate(loader):
    loss = criterion(model(x))
    loss.backward()
    count += 1
    running = 0 if i == 0 else running + loss.item()
    if count % 10 == 0:
        writer.add_scalar("loss", running / (i + 1), count)
""",
    "by the job": """
for i, x in enumerate(loader):
    loss = criterion(model(x))
    if job.step >= 100:
        loss = loss + model.penalty()
    loss.backward()
    if i == 3:
        model.save()
""",
    "sums": """
total = 0
for x in loader:
    loss = criterion(model(x))
    loss.backward()
    total += loss.item()
    count += 1
mean = total / count
""",
    "a scaler": """
for x in loader:
    optimizer.zero_grad()
    loss = criterion(model(x))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    model.add(1)
""",
    "no count": """
for x in loader:
    loss = criterion(model(x))
    for part in (1, 2):
        loss = loss + part
    loss.backward()
""",
}


class Loader:
    """Looks at who asks for its first batch, as the real one."""

    found: str | None = None

    def __iter__(self) -> Iterator[float]:
        self.found = counted.look(sys._getframe(1))
        yield 1.0


def look(text: str, path: Path) -> str | None:
    path.write_text(HEAD + text)
    loader = Loader()
    exec(compile(path.read_text(), str(path), "exec"), {"loader": loader, "__name__": "script"})
    return loader.found


@pytest.mark.parametrize("what", HANGING)
def test_a_count_that_training_hangs_on_is_named(what: str, tmp_path: Path) -> None:
    assert look(HANGING[what], tmp_path / "train.py") == ("i" if "enumerate" in HANGING[what] else "count")


@pytest.mark.parametrize("what", SHOWING)
def test_a_count_that_only_shows_is_none(what: str, tmp_path: Path) -> None:
    assert look(SHOWING[what], tmp_path / "train.py") == ""


def test_a_loop_without_source_says_nothing() -> None:
    loader = Loader()
    exec("for i, x in enumerate(loader):\n    loss = x + i\n    x.hex()", {"loader": loader})
    assert loader.found == ""
