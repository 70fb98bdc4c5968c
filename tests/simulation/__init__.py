"""A seeded simulation: real servers, replicas and consumers on a virtual clock and a bad network.

``python -m tests.simulation --seeds 2000`` runs many; ``--seed N`` repeats one, and tells of it.
"""
