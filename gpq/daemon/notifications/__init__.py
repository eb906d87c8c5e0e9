"""From the journal to who is told what, once each, with secrets left out.

Open `notifier.py` first.
"""
