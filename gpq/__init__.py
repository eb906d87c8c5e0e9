"""gpq: a job manager for shared GPU servers that allocates by goodput.

From Python: ``job = gpq.submit("train.py", gpus=(1, 8)); job.wait()``; `gpq.api` has all of it, and is imported once it is
used: the door imports this module, so it imports nothing by itself.
"""

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from gpq import errors
    from gpq.api import (
        Array,
        CancelResult,
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
        Selector,
        Word,
        cancel,
        history,
        job,
        jobs,
        nodes,
        report,
        status,
        submit,
        submit_array,
        wait,
    )

__version__ = "0.1.0"
__all__ = [
    "Array", "CancelResult", "DryRun", "Duration", "Explanation", "Gpus", "HistoryList", "Job", "JobDetail",
    "JobList", "JobView", "LogPiece", "Moment", "NodeList", "NodeView", "Options", "ReportView", "Selector", "Word",
    "cancel", "errors", "history", "job", "jobs", "nodes", "report", "status", "submit", "submit_array", "wait",
]  # fmt: skip

if not TYPE_CHECKING:  # or every misspelt name would have a type

    def __getattr__(name):
        """One of `__all__`, the first time that it is asked for."""
        if name not in __all__:
            raise AttributeError(f"module 'gpq' has no attribute {name!r}", name=name, obj=__import__("gpq"))
        from importlib import import_module

        found = import_module("gpq.errors") if name == "errors" else getattr(import_module("gpq.api"), name)
        globals()[name] = found
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
