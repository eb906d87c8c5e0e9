"""Under `gpq check`: runs in the ordered shape, records each step, and writes no file of the user.

Nothing below imports it. `init` hands its recorder down. The loader makes a trial, which looks at
the loss of an attempt with the same means.
"""
