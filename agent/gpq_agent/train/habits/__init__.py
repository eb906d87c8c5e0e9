"""What loops do that is not safe in some shape: the table, who notices it, the freedoms that are
left.

One habit, one class, one file, one row of the table, one test. Nothing here changes a training.
"""
