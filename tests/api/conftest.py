"""The fixtures of the command-line tests, because these tests use the same daemons."""

from __future__ import annotations

from tests.cli.conftest import gpq, home, live, made

__all__ = ["gpq", "home", "live", "made"]
