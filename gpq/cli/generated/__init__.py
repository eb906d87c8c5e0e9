"""Names what each command prints as JSON. tests/generated makes the schemas of it."""
