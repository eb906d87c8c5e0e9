"""Turns answers into text and tables for a terminal. Asks nobody and changes nothing.

Each file draws one kind of answer. `pictures` writes files, and `top` draws `gpq top`.

Open `terminal.py` first.
"""
