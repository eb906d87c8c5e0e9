"""The agents of `tests/agent/node`, and scripts on one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.node.conftest import agent, node, spool
from tests.agent.node.harness import NodeAgent
from tests.agent.standby.harness import Scripts

__all__ = ["agent", "node", "spool"]


@pytest.fixture
def scripts(node: NodeAgent, tmp_path: Path) -> Scripts:
    folder = tmp_path / "scripts"
    folder.mkdir()
    return Scripts(node, folder)
