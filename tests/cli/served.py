"""A daemon's socket in a thread, with answers made of the real message types; what it was asked is kept.

It stands in for the daemon where a test is about what the command line prints. The daemon itself is tested with the
command line in tests/e2e.
"""
