"""The loop commits events before it gives any answer or sends any order. What a request asks and
what it gets back are here too.

`controller.py` is the loop itself. `readings.py` answers requests that change nothing, `submit.py`
and `changes.py` those that become events, or a refusal that changed nothing.

Open `controller.py` first, then `readings.py`.
"""
