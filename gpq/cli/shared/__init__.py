"""What commands have in common: the frame around typer, output, declarations of options."""
