#!/usr/bin/env bash
# On a machine with a CUDA device: the tests marked gpu, then the GPU figures of docs/gpu-results.md.
# Needs Python >= 3.11 with torch >= 2.11 and the other requirements already installed (snakemake is not used); installs
# only the checkout itself, from the disk. Takes well under 15 minutes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONUNBUFFERED=1
python3 -m pip install --quiet --no-deps --no-build-isolation --no-index --editable . || exit 1
python3 - <<'PY'
import torch
print("torch", torch.__version__, "on", torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device")
PY

failed=0
timeout 400 python3 -m pytest -q -m gpu tests || failed=1
for script in benchmarks/gpu_*.py; do
    [ -e "$script" ] || continue
    echo "== $script"
    timeout 200 python3 "$script" || failed=1
done
exit $failed
