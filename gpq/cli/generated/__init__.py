"""Makes the schemas of answers. No command imports it."""
