"""The agents of `tests/agent/node`, and a way to make a standby."""

from tests.agent.node.conftest import agent, node, spool

__all__ = ["agent", "node", "spool"]
