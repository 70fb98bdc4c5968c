"""The LMerge paper's evaluation, figure by figure (§VI): ``lmerge bench figures``."""
