"""Imported last by a fork server. Its children then neither copy nor scan earlier imports, such as torch's 290,000
objects."""

import gc

gc.collect()
gc.freeze()
