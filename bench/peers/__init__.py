"""What users have today for merging replicas, on the same work: ``python -m bench.peers``."""
