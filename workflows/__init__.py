"""The Snakemake workflows, as package data, and the pure Python that plans them.

`plan.build` turns a config and the installed steps into jobs; the rules in ``*.smk`` only carry them out. Nothing
here imports computekit: the steps and their options come from ``computekit plugins --json``.
"""
