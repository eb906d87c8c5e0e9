"""Turns a snapshot into Prometheus text and serves it over HTTP, if the config asks for it.

Open `metrics.py` first.
"""
