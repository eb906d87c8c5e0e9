"""All decisions, as pure functions: data in, data out. No clock, no file, no socket.

Each package imports only packages below it: `explain`, `rounds`, `state` and `placement`,
`accounting`, `feasibility` and `goodput`, `freedoms`, `model`.
"""
