"""The loop commits events before it gives any answer or sends any order.

`controller.py` is the loop itself. Selectors, counters and the words for events serve both halves:
`requests` writes and `answers` reads.
"""
