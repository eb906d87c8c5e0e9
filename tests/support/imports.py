"""Imports every module of gpq and of the agent's node part: `python -W error -m tests.support.imports`. The train part
and what runs in a standby need torch."""

from __future__ import annotations

import importlib
import pkgutil

import gpq_agent.node
import gpq_agent.wire

import gpq


def main() -> None:
    for package in (gpq, gpq_agent.node):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


if __name__ == "__main__":
    main()
