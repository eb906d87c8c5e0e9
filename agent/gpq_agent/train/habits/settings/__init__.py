"""How a loop sets its optimizers and models up, and otherwise as it goes."""
