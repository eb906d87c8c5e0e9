"""Adapters: a script of a framework becomes elastic by one to three changed lines.

Each adapter is imported only by a script that asks for it. It drives the steps of `train/loop` as
the contract there says, or gives a script that has its own loop `job.loader()`. `versions.py` has
every private name of a framework that an adapter uses, and the versions that were tried.
"""
