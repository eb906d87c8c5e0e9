"""The loop: events are committed before any answer is given or order sent.

`controller.py` is the loop itself. Selectors, counters and the words for events serve both halves:
`requests` writes, `answers` reads.
"""
