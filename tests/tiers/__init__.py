"""Which tests run when, and what happens to those that fail: `python -m tests.tiers`, see docs/internals/tests.md."""
