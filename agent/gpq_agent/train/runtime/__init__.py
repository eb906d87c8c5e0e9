"""The process: its environment, replicas that agree, the agent's files, signals, the way out."""
