"""Under `gpq check`: runs in the ordered shape, records each step, and writes no file of the user.

Nothing below imports it. `init` hands its recorder down, and the loader's trial uses what makes
bodies repeatable.
"""
