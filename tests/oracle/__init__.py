"""The oracle: the paper's algorithms read literally, random and exhaustive runs, and a checker.

Nothing here may import the product, so that an error cannot hide in both.
"""
