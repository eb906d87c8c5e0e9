"""Only under `gpq check`: runs in the shape of its order, records each step, writes no user's file.

Nothing below imports it. `init` hands its recorder down.
"""
