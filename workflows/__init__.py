"""The Snakemake workflows, as package data, and the pure Python that plans them."""
