"""The fixtures of the command line's tests, because both ask the same daemons."""

from __future__ import annotations

from tests.cli.conftest import gpq, home, live, made

__all__ = ["gpq", "home", "live", "made"]
