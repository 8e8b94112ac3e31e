# From nothing to results/table.md: train, compress, measure, compare. What exactly is in config/config.yaml, or in the
# file after --configfile. The rules are generic: a new step of any plugin needs only a line of config.
#
#   snakemake --cores 2
#   snakemake --cores 2 --configfile config/text.yaml
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")

# Snakemake merges --configfile into this one, and variants of both would run.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


include: "workflows/pipeline.smk"


rule all:
    default_target: True
    input:
        PLAN.targets,


onsuccess:
    table = Path(PLAN.results, "table.md")
    if table.exists():
        print(table.read_text(encoding="utf-8"))
