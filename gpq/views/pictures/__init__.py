"""What is written to files: HTML pages, SVG, plots and CSV."""
