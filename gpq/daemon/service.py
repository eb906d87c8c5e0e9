"""What the daemon does with each request: reads from the newest snapshot, changes through the controller."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import gpq
from gpq import paths
from gpq.control import details, narration, requests
from gpq.control.answers import Reader
from gpq.control.controller import Controller
from gpq.control.selectors import resolve, single
from gpq.core.models import TERMINAL, Job, JobId, JobState, Snapshot
from gpq.core.policy import Policy
from gpq.core.rounds import decide
from gpq.daemon.clock import deadline, left
from gpq.daemon.logs import LogReader, Tail
from gpq.daemon.server import Peer
from gpq.errors import NotFound, UsageError
from gpq.ports import History, World
from gpq.rpc import messages
from gpq.rpc.messages import Request
