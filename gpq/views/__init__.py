"""From answers to text and tables in a terminal. Asks nobody and changes nothing.

A file draws one kind of answer. `pictures` writes files, `top` draws `gpq top`.

Open `terminal.py` first.
"""
