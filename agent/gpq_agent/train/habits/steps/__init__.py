"""Habits in how a loop calls its optimizers, one observer each."""
