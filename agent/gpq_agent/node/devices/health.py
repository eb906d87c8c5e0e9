"""The verdict on one GPU: free for our jobs, somebody else's, or out of use. Also since when, and
when to look again.

Pure: looks come in, verdicts go out, and `now` is an argument (seconds of a clock that never goes
back).
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from gpq_agent.node.host import user_names

UNSEEN_MIB = 1500  # memory without a visible process, if it is more than a driver keeps for itself
# Roles of processes that do not keep a GPU from being used. One only draws. One is NVIDIA's server
# for sharing a GPU (MPS), whose clients are visible themselves. One belongs to `gpq doctor`, which
# holds the GPU's lock.
DESKTOP, SHARING, TRIAL = "desktop", "sharing", "trial"
# looks in a row that must contradict the known state before it changes. One may be a blip, or the
# rest of an ended job
SETTLE_LOOKS = 2
# seconds to the next look at a GPU that is out of use, doubled each time
FIRST_WAIT, LONGEST_WAIT = 30.0, 1800.0


class HealthProblem(NamedTuple):
    """Why something is out of use. `due`: when the next look counts. `wait`: seconds from the last
    counted look to that one."""

    state: str  # "lost" | "quarantined" | "degraded"
    reason: str
    since: float
    wait: float
    due: float


class HealthState:
    """The course of problems. A look that finds a fault delays the next one. A look that finds none
    ends the problem, if its time has come. A fault that returns sooner than the last wait counts as
    the same one, so that a flapping GPU stays out of use."""

    def __init__(self, first_wait: float = FIRST_WAIT, longest: float = LONGEST_WAIT) -> None:
        self.first_wait = first_wait
        self.longest = longest
        self.now: Optional[HealthProblem] = None
        self._last: Optional[HealthProblem] = None
        self._well_since = 0.0

    def ill(self, state: str, reason: str, now: float) -> None:
        """A look found a fault."""
        if self.now is not None:
            wait, due = self.now.wait, self.now.due
            if now >= due:
                wait = min(wait * 2, self.longest)
                due = now + wait
            self.now = HealthProblem(state, reason, self.now.since, wait, due)
            return
        wait = self.first_wait
        if self._last is not None and now - self._well_since < self._last.wait:
            wait = min(self._last.wait * 2, self.longest)
        self.now = HealthProblem(state, reason, now, wait, now + wait)

    def well(self, now: float, at_once: bool = False) -> None:
        """A look found no fault. `at_once`: it counts even before its time."""
        if self.now is not None and (at_once or now >= self.now.due):
            self._last, self._well_since, self.now = self.now, now, None


class DeviceHealth:
    """One GPU over all its looks."""

    def __init__(self, first_wait: float = FIRST_WAIT) -> None:
        self.course = HealthState(first_wait)
        self.seen = ""  # who else used it at the last look, as a phrase
        self.settled = ""  # the same, as reported
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
        """Take one look. `problem`: a fault that the driver reports. `loss`: the GPU is gone.
        `strangers`: who else uses it. `ghost`: no visible process does. `ecc`: uncorrectable memory
        errors since the driver was loaded."""
        new_errors = 0
        if ecc is not None:
            new_errors = ecc - self._ecc if self._ecc is not None else 0
            self._ecc = ecc
        if loss:
            self.course.ill("lost", loss, now)
        elif problem:
            self.course.ill("quarantined", problem, now)
        elif new_errors > 0:
            words = "{} uncorrectable memory errors (ECC)".format(new_errors)
            self.course.ill("quarantined", words, now)
        elif self.left and ghost:
            words = "attempt {} has ended, but the GPU is {}".format(self.left, strangers)
            self.course.ill("quarantined", words, now)
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
        """Did the last look contradict the known state, so that the next one decides?"""
        return self._looks > 0

    def verdict(
        self, now: float, holder: str, locked: str, stuck: str, driver: Optional[HealthProblem]
    ) -> Tuple[str, str]:
        """(state, reason). `holder`: our attempt that has it. `locked`: the lock of another user's
        gpq, as a phrase. `stuck`: our process on it that cannot be killed. "ok" with a reason: it
        is ours, and somebody else uses it too."""
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
    """(a phrase that says who else than `holder` uses a GPU, whether no visible process is
    responsible). ("", False): nobody else.

    `processes` as in wire.DeviceInfo. If all of them report their memory, the rest of the used
    memory counts as somebody's, because containers and some drivers hide other users' processes.
    Processes with a role do not count.
    """
    foreign_processes = [
        process
        for process in processes
        if not process.get("role") and (not process["attempt"] or process["attempt"] != holder)
    ]
    if foreign_processes:
        names = [_process_text(process) for process in foreign_processes[:3]]
        unnamed = len(foreign_processes) - 3
        suffix = " and {} more".format(unnamed) if unnamed > 0 else ""
        return "used by {}{}".format(", ".join(names), suffix), False
    if holder and not processes:  # the driver shows no processes, so all of it may be ours
        return "", False
    unseen_mib = used_mib - sum(process["memory_mib"] for process in processes)
    if unseen_mib > UNSEEN_MIB and all(process["memory_mib"] > 0 for process in processes):
        words = "used by somebody: {} are in use, but by no visible process"
        return words.format(user_names.size(unseen_mib)), True
    return "", False


def _process_text(process: Dict[str, Any]) -> str:
    """``carl (python, 11 GiB, since 14:02)``."""
    if process["attempt"]:
        words = "attempt {} ({}, not assigned to it)"
        return words.format(process["attempt"], user_names.size(process["memory_mib"]))
    if not process["user"]:
        words = "pid {} (not visible from here, {})"
        return words.format(process["pid"], user_names.size(process["memory_mib"]))
    facts = [process["name"] or "pid {}".format(process["pid"])]
    if process["memory_mib"]:
        facts.append(user_names.size(process["memory_mib"]))
    if process.get("since"):
        facts.append("since " + user_names.moment(process["since"]))
    return "{} ({})".format(process["user"], ", ".join(facts))
