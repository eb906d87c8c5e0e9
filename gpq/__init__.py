"""gpq: a job manager for shared GPU servers that shares them by goodput.

From Python, `gpq.submit("train.py", gpus=(1, 8)).wait()` submits a job and waits for it. The
functions are those of `gpq.api`, which Python imports at their first use. The entry point imports
this module too, so it imports nothing by itself.
"""

TYPE_CHECKING = False  # importing typing takes time
if TYPE_CHECKING:
    from gpq import errors
    from gpq.api import (
        Array,
        CancelResult,
        DaemonInfo,
        Drained,
        DryRun,
        Duration,
        Explanation,
        Gpus,
        HistoryList,
        Job,
        JobDetail,
        JobList,
        JobView,
        LogPiece,
        Moment,
        NodeList,
        NodeView,
        Options,
        ReportView,
        Reserved,
        Selector,
        TopView,
        Word,
        Yielded,
        add_node,
        cancel,
        daemon_log,
        daemon_status,
        drain,
        history,
        job,
        jobs,
        nodes,
        notify_targets,
        notify_test,
        remove_node,
        report,
        reserve,
        settings,
        start_daemon,
        status,
        stop_daemon,
        submit,
        submit_array,
        top,
        undrain,
        unreserve,
        wait,
        yield_node,
    )

__version__ = "0.2.0"
__all__ = [
    "Array", "CancelResult", "DaemonInfo", "Drained", "DryRun", "Duration", "Explanation", "Gpus",
    "HistoryList", "Job", "JobDetail", "JobList", "JobView", "LogPiece", "Moment", "NodeList",
    "NodeView", "Options", "ReportView", "Reserved", "Selector", "TopView", "Word", "Yielded",
    "add_node", "cancel", "daemon_log", "daemon_status", "drain", "errors", "history", "job",
    "jobs", "nodes", "notify_targets", "notify_test", "remove_node", "report", "reserve",
    "settings", "start_daemon", "status", "stop_daemon", "submit", "submit_array", "top", "undrain",
    "unreserve", "wait", "yield_node",
]  # fmt: skip

if not TYPE_CHECKING:  # otherwise every misspelt name would have a type

    def __getattr__(name):
        """A name of `__all__`, at its first use."""
        if name not in __all__:
            raise AttributeError(
                f"module 'gpq' has no attribute {name!r}", name=name, obj=__import__("gpq")
            )
        from importlib import import_module

        value = (
            import_module("gpq.errors")
            if name == "errors"
            else getattr(import_module("gpq.api"), name)
        )
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
