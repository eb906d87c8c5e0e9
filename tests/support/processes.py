"""Processes as tests look at them. One that ends between two looks has no children and no arguments, which is no error."""

from __future__ import annotations

import psutil


def running_children(pid: int, word: str) -> list[psutil.Process]:
    """Running children of `pid` with `word` in an argument."""
    return [child for child in psutil.Process(pid).children() if any(word in part for part in arguments(child))]


def arguments(process: psutil.Process) -> list[str]:
    """Its command line, or [] once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> None:
    """Also fine if it has already ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
