"""What the PySpark side costs and gains: ``python -m bench.replicas``."""
