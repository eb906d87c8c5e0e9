"""Files that gpq writes: HTML pages, SVG, plots and CSV."""
