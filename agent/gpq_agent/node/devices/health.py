"""What is to be thought of one GPU: ours to give away, somebody else's, or out of use; since when,
and when to look again.

Pure: looks come in, verdicts go out, `now` is an argument (seconds of a clock that never goes
back).
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent.node.host import user_names

UNSEEN_MIB = 1500  # memory in use by no visible process that is more than a driver keeps for itself
# Roles of processes that keep nobody off a GPU: one only draws, one is NVIDIA's server for sharing
# a GPU (MPS), whose clients are seen by themselves, and one is of `gpq doctor`, which holds the
# GPU's lock.
DESKTOP, SHARING, TRIAL = "desktop", "sharing", "trial"
# in a row that must contradict what is known before that changes: a blip, the rest of an ended job
SETTLE_LOOKS = 2
# seconds to the next look at what is out of use, doubled each time
FIRST_WAIT, LONGEST_WAIT = 30.0, 1800.0


class HealthProblem(NamedTuple):
    """Why something is out of use. `due`: when the next look counts; `wait`: seconds from the last
    one to that."""

    state: str  # "lost" | "quarantined" | "degraded"
    reason: str
    since: float
    wait: float
    due: float


class HealthState:
    """Of illnesses: a look that finds a fault makes the next one later; one that finds none, and is
    due, ends it. A fault that is back before it was gone for as long as the last wait counts as the
    same, so that a flapping GPU stays out."""

    def __init__(self, first_wait: float = FIRST_WAIT, longest: float = LONGEST_WAIT) -> None:
        self.first_wait = first_wait
        self.longest = longest
        self.now: Optional[HealthProblem] = None
        self._last: Optional[HealthProblem] = None
        self._well_since = 0.0

    def ill(self, state: str, reason: str, now: float) -> None:
        """A look found a fault."""
        if self.now is not None:
            wait = min(self.now.wait * 2, self.longest) if now >= self.now.due else self.now.wait
            due = now + wait if now >= self.now.due else self.now.due
            self.now = HealthProblem(state, reason, self.now.since, wait, due)
            return
        wait = self.first_wait
        if self._last is not None and now - self._well_since < self._last.wait:
            wait = min(self._last.wait * 2, self.longest)
        self.now = HealthProblem(state, reason, now, wait, now + wait)

    def well(self, now: float, at_once: bool = False) -> None:
        """A look found no fault; `at_once`: it counts also where it is not due."""
        if self.now is not None and (at_once or now >= self.now.due):
            self._last, self._well_since, self.now = self.now, now, None


class DeviceHealth:
    """One GPU over all looks at it."""

    def __init__(self, first_wait: float = FIRST_WAIT) -> None:
        self.course = HealthState(first_wait)
        self.seen = ""  # who else was on it at the last look, as a sentence
        self.settled = ""  # the same as it is told
        self.left = ""  # attempt that ended and left memory in use
        self._ecc: Optional[int] = None
        self._looks = 0
        self._known = False
        self._state = ("", 0.0)

    def look(
        self,
        now: float,
        problem: str = "",
        loss: str = "",
        strangers: str = "",
        ghost: bool = False,
        ecc: Optional[int] = None,
    ) -> None:
        """Take in one look. `problem`: a fault that the driver tells, `loss`: that it is gone;
        `strangers`: who else is on it; `ghost`: nobody can be seen who is; `ecc`: uncorrectable
        memory errors since the driver was loaded."""
        new_errors = ecc - self._ecc if ecc is not None and self._ecc is not None else 0
        self._ecc = ecc if ecc is not None else self._ecc
        if loss:
            self.course.ill("lost", loss, now)
        elif problem:
            self.course.ill("quarantined", problem, now)
        elif new_errors > 0:
            self.course.ill(
                "quarantined", "{} uncorrectable memory errors (ECC)".format(new_errors), now
            )
        elif self.left and ghost:
            self.course.ill(
                "quarantined",
                "attempt {} has ended, but the GPU is {}".format(self.left, strangers),
                now,
            )
        else:
            self.left = ""
            self.course.well(now)
        if loss or problem:
            return
        self.seen = strangers
        contradicted = bool(strangers) != bool(self.settled)
        self._looks = self._looks + 1 if contradicted else 0
        if not contradicted or self._looks >= SETTLE_LOOKS or not self._known:
            self.settled, self._looks = strangers, 0
        self._known = True

    @property
    def is_in_doubt(self) -> bool:
        """Did the last look contradict what is known, which the next one decides?"""
        return self._looks > 0

    def verdict(
        self, now: float, holder: str, locked: str, stuck: str, driver: Optional[HealthProblem]
    ) -> Tuple[str, str]:
        """(state, reason). `holder`: the attempt of ours that has it, `locked`: the lock of
        another's gpq as a sentence, `stuck`: what of ours on it cannot be killed. "ok" with a
        reason: ours, and somebody is on it beside us."""
        illness = driver or self.course.now
        if illness is not None:
            verdict = (illness.state, illness.reason)
        elif stuck:
            verdict = ("quarantined", stuck)
        elif locked and not holder:
            verdict = ("foreign", locked)
        elif self.settled:
            verdict = ("ok", "also " + self.settled) if holder else ("foreign", self.settled)
        else:
            verdict = ("ok", "")
        if verdict[0] != self._state[0]:
            self._state = (verdict[0], illness.since if illness is not None else now)
        return verdict

    def age(self, now: float) -> float:
        """Seconds in the state of the last verdict."""
        return max(0.0, now - self._state[1])


def strangers(processes: List[Dict[str, Any]], used_mib: int, holder: str) -> Tuple[str, bool]:
    """(who else than `holder` is on a GPU, as a sentence; can nobody be seen who is?). ("", False):
    nobody else.

    `processes` as in wire.DeviceInfo. Memory beyond what they have counts as somebody's, where all
    tell how much they have: in a container, and with some drivers, others' processes are not shown.
    Those with a role are in nobody's way.
    """
    foreign_processes = [
        process
        for process in processes
        if not process.get("role") and (not process["attempt"] or process["attempt"] != holder)
    ]
    if foreign_processes:
        names = [_named(process) for process in foreign_processes[:3]]
        suffix = (
            " and {} more".format(len(foreign_processes) - 3) if len(foreign_processes) > 3 else ""
        )
        return "used by {}{}".format(", ".join(names), suffix), False
    if holder and not processes:  # a driver that shows none: all of it may be ours
        return "", False
    unseen_mib = used_mib - sum(process["memory_mib"] for process in processes)
    if unseen_mib > UNSEEN_MIB and all(process["memory_mib"] > 0 for process in processes):
        return "used by somebody: {} are in use, but by no visible process".format(
            user_names.size(unseen_mib)
        ), True
    return "", False


def _named(process: Dict[str, Any]) -> str:
    """``carl (python, 11 GiB, since 14:02)``."""
    if process["attempt"]:
        facts = ["{}, not assigned to it".format(user_names.size(process["memory_mib"]))]
        return "attempt {} ({})".format(process["attempt"], ", ".join(facts))
    if not process["user"]:
        return "pid {} (not visible from here, {})".format(
            process["pid"], user_names.size(process["memory_mib"])
        )
    facts = [process["name"] or "pid {}".format(process["pid"])]
    if process["memory_mib"]:
        facts.append(user_names.size(process["memory_mib"]))
    if process.get("since"):
        facts.append("since " + user_names.moment(process["since"]))
    return "{} ({})".format(process["user"], ", ".join(facts))
