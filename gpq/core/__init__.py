"""Everything that is decided, as pure functions: data in, data out. No clock, no file, no socket.

Each room imports only rooms below it: `explain`, `rounds`, `state` and `placement`, `accounting`,
`feasibility` and `goodput`, `freedoms`, `model`.
"""
