"""How a loop sets up its optimizers and models, and what it changes later."""
