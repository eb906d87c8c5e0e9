"""From an event to the next snapshot. Only this package changes a job.

`fold(snapshot, event)` is pure, so the same events always give the same snapshot: in the daemon, in
the simulator and after a crash.

Open `lifecycle.py` for the states of a job, `attempt_end.py` for the meaning of an end, then
`apply_events.py`.
"""
