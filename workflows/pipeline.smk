# The whole pipeline as rules, for any Snakefile that has a config; PLAN.targets is what it makes. plan.py decides what
# runs, and these files only carry it out.
import os
import sys

from computekit_workflows import plan, registry

# Jobs find the computekit of the Python that runs Snakemake, whether or not its environment is active.
shell.prefix(
    f"set -euo pipefail; export PATH={os.path.dirname(sys.executable)}:$PATH; "
)

try:
    PLAN = plan.build(config, registry.installed())
except registry.ConfigError as problem:
    sys.exit(f"Error: config: {problem}")


def cores(job):
    """An exclusive step takes every core, so that nothing disturbs its timing."""
    return workflow.cores or job.threads if job.exclusive else job.threads


include: "steps.smk"
include: "results.smk"
