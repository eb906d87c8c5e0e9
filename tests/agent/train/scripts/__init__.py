"""Training scripts in the style of published ones, each with gpq's few lines. Their argument is the file for the
weights."""
