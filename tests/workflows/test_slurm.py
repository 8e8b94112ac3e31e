"""The pipeline on a real Slurm of one node, started for the test: profiles/slurm as a user would run it.

The executor drops SLURM_CONF, so the configuration has to be in /etc/slurm; where one is there already, or Slurm is
not installed, the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ROOT, Pipeline
from .test_pipeline import CONFIG, VIEWS

ETC = Path("/etc/slurm")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.pid
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={dir}
SlurmdSpoolDir={dir}/spool
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.log
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=60 State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[None]:
    """A Slurm of this machine alone, listening on the loopback address; stopped afterwards."""
    for program in ("slurmctld", "slurmd", "munged", "sbatch"):
        if shutil.which(program) is None and not Path("/usr/sbin", program).exists():
            pytest.skip(f"{program} is not installed (Debian: slurm-wlm, munge)")
    if os.getuid() != 0:
        pytest.skip("starting Slurm takes root")
    if (ETC / "slurm.conf").exists():
        pytest.skip("this machine has a Slurm of its own")
    folder = tmp_path / "slurm"
    (folder / "spool").mkdir(parents=True)
    text = CONF.format(host=socket.gethostname().split(".")[0], dir=folder, cpus=os.cpu_count())
    ETC.mkdir(exist_ok=True)
    (ETC / "slurm.conf").write_text(text, encoding="utf-8")
    munge = Path("/run/munge")
    own_munge = subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode != 0
    try:
        if own_munge:
            munge.mkdir(exist_ok=True)
            shutil.chown(munge, "munge", "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
        subprocess.run(["/usr/sbin/slurmctld"], check=True)
        subprocess.run(["/usr/sbin/slurmd"], check=True)
        _wait_until_idle()
        yield
    finally:
        pids = [folder / "slurmd.pid", folder / "slurmctld.pid", *([munge / "munged.pid"] if own_munge else [])]
        for pid in (path for path in pids if path.exists()):
            os.kill(int(pid.read_text(encoding="utf-8")), 15)
        (ETC / "slurm.conf").unlink()


def _wait_until_idle() -> None:
    deadline, state = time.monotonic() + 60, ""
    while time.monotonic() < deadline:  # each question takes seconds while nobody answers
        state = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False).stdout.strip()
        if state == "idle":
            return
        time.sleep(1)
    pytest.skip(f"Slurm did not come up; its node is {state or 'unknown'}")


@pytest.mark.slow
def test_runs_on_slurm_with_the_shipped_profile(pipeline: Pipeline, slurm: None) -> None:
    pipeline.configure(CONFIG.replace("  trimmed+hard: [base, trim, hard]\n", "").replace("  bill: {of: race}\n", ""))
    made = pipeline.run(
        "--workflow-profile", str(ROOT / "profiles" / "slurm"), "--slurm-no-account",
        "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2",
        "--seconds-between-status-checks", "2",
        "--default-resources", "slurm_partition=main", "mem_mb=200", "runtime=5",
        cores=None,
    )  # fmt: skip
    assert made >= VIEWS
