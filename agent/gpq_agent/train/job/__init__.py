"""All that a script can do with its job, and what its calls compose. Decides nothing."""
