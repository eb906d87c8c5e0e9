"""Training scripts in the style of what is published, each with gpq's few lines. They take the file for their weights."""
