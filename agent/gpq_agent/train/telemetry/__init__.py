"""Reports to the agent, without ever delaying a step."""
