"""How a loop calls its optimizers."""
