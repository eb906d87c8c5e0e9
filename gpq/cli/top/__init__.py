"""`gpq top`: keys, screen, and the threads that poll. `views.top` draws.

Open `app.py` first.
"""
