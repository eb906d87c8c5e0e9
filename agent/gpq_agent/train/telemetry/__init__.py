"""What goes up, never in the way of a step."""
