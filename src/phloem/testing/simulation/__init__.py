"""A whole Phloem under faults, on a simulated clock: one seed, one run.

The cores and shells of all five services are the real ones; the device, the threads, the sockets and the network are not. See
`phloem.testing.simulate` for the command.
"""

from .scenario import Scenario, draw_scenario
from .world import Result, compare, simulate

__all__ = ["Result", "Scenario", "compare", "draw_scenario", "simulate"]
