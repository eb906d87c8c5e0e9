"""`p.grad` is the whole step's gradient when the last backward returns, and zero before.

Notices nothing about loops; exposes facts.
"""
