"""The process: its environment, replicas that agree, the agent's files, signals, the way out.

It measures steps and reports to the agent without ever delaying a step.
"""
