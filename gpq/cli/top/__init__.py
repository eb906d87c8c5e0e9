"""`gpq top`: keys, screen, and the threads that poll. `gpq.views` draws.

Open `app.py` first.
"""
