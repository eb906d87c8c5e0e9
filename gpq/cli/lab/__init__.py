"""Commands about servers, the daemon, the configuration and notifications, and the scripts and
schemas that gpq prints."""
