"""From a snapshot to Prometheus text, served over HTTP where the config asks for it.

Open `metrics.py` first.
"""
