"""`phloem bench policy`: the scheduler's own core with a virtual clock and a device that only costs time.

No model and no process takes part: a run of minutes is simulated in seconds, and equal options give equal figures on every machine.
"""
