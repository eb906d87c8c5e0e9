"""Commands about servers, the daemon, the configuration and notifications."""
