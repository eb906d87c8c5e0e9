"""The process: its environment, replicas that agree, orders, signals, the way out."""
