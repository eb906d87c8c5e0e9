"""Commands about servers, the daemon, the configuration and who is notified."""
