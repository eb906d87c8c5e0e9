"""Turns answers into text and tables for a terminal, and into files. Asks nobody, changes nothing.

Each file draws one kind of answer.

Open `plain.py` first.
"""
