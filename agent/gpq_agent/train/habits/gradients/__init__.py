"""What a loop does to gradients, and how it makes its loss."""
