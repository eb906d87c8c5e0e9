"""What the commands have in common: the frame around typer, output, and options."""
