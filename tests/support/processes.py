"""Processes as tests look at them: one that ends between two looks has no children, no arguments, and is no surprise."""

from __future__ import annotations

import psutil


def running_children(pid: int, word: str) -> list[psutil.Process]:
    """Children of `pid` that run, with `word` in an argument."""
    return [child for child in psutil.Process(pid).children() if any(word in part for part in arguments(child))]


def arguments(process: psutil.Process) -> list[str]:
    """Its command line, [] once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> None:
    """Also where it has ended by itself."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
