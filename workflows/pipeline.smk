# The whole pipeline as rules, for any Snakefile that has a config; PLAN.targets is what it makes. plan.py decides what
# runs, and these files only carry it out.
import os
import shlex
import sys

from computekit_workflows import plan, registry

# Jobs find the computekit of the Python that runs Snakemake, whether or not its environment is active.
BIN = shlex.quote(os.path.dirname(sys.executable))
shell.prefix(f"set -euo pipefail; export PATH={BIN}:$PATH; ")

registry.allow(config.get("plugins"))

try:
    PLAN = plan.build(config, registry.installed())
except registry.ConfigError as problem:
    sys.exit(f"Error: config: {problem}")


def cores(job):
    """Threads to reserve: an exclusive step takes every core, so that nothing disturbs its timing."""
    # None on a cluster, where the profile reserves whole nodes.
    everything = workflow.resource_settings.cores
    return everything if job.exclusive and everything else job.threads


include: "steps.smk"
include: "results.smk"
