"""Everything PySpark: replicas of a streaming query, and what they need around them."""
