"""Habits: what loops do that is not safe in some shape. The table, the watch, and the freedoms
that remain.

One habit has one row of the table and one test. Nothing here changes a training.
"""
