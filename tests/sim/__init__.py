"""A simulated machine: its disk, its clock and its event loop, all decided by one seed."""
