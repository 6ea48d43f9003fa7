"""The processes that run code on raw buffers: the runner (a candidate's binary) and the eager worker (torch).

Start at `session.py` (the runner), `eager.py` (the worker) and `protocol.py` (what both take and give).
"""
