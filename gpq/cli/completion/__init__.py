"""What the TAB key offers, and the scripts that ask for it."""
