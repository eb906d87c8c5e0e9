"""Habits in how a loop calls its optimizers, an observer each."""
