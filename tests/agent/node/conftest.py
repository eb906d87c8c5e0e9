"""Fixtures: agents on their own spool, which leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.node.harness import NodeAgent, sweep


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """A spool whose processes are gone after the test."""
    path = tmp_path / "spool"
    yield path
    sweep(path)


@pytest.fixture
def agent(spool: Path, tmp_path: Path) -> Iterator[Callable[..., NodeAgent]]:
    """Starts agents on the spool, with a lock folder that no other test's agent reads."""
    running: list[NodeAgent] = []
    locks = tmp_path / "own-locks"
    locks.mkdir()

    def begin(*options: str, **fields: Any) -> NodeAgent:
        if "--locks" not in options:
            options = (*options, "--locks", str(locks))
        running.append(NodeAgent(spool, *options, **fields))
        return running[-1]

    yield begin
    for one in running:
        one.close()


@pytest.fixture
def node(agent: Callable[..., NodeAgent]) -> NodeAgent:
    """An agent with four CPU slots on one core."""
    return agent("--slots", "4")
