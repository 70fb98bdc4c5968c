"""Example queries, each in several plans that give the same answer, with data and the truth.

Every module has, over a directory of files that ``generate(directory, rows, seed, disorder_s)``
writes:

- builders for ``lmerge replica run replicas/plans/machines.py:conservative`` and
  :func:`replicas.attach`: different plans of one logical query. They read the directory that
  ``spark.lmerge.plans.input`` names;
- ``truth(spark, directory)``, a plain batch job that says what the merge must come to.

Inputs of the same ``rows`` and ``seed`` hold the same rows, whatever their disorder: replicas may
each read their own.
"""
