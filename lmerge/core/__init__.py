"""The merge itself: a deterministic state machine without I/O, clocks or threads."""
