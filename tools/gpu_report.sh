#!/usr/bin/env bash
# Everything that only a GPU can show, within nine minutes, on one Markdown page: tools/gpu_report.sh FOLDER [--help]
# Needs Python 3.11 or newer with torch 2.11 or newer, numpy, h5py, tokenizers and safetensors. Nothing is installed or
# fetched. PYTHON=python3.12 chooses the Python; otherwise it is that of .venv, else the first one that has torch.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

find_python() {
    local name
    for name in ${PYTHON:-"$root/.venv/bin/python" python3 python python3.14 python3.13 python3.12 python3.11}; do
        if "$name" -c 'import importlib.util as u, sys; sys.exit(sys.version_info < (3, 11) or not u.find_spec("torch"))' \
            2>/dev/null; then
            echo "$name"
            return
        fi
    done
    echo "no Python of 3.11 or newer with torch here; PYTHON=/path/to/python names one" >&2
    return 2
}

python=$(find_python)
# tests/support: run configurations made whole. Offline: a library that would ask its hub fails at once instead.
export PYTHONPATH=$root/tools:$root/trainer:$root/benchmarks:$root/tests/support${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
unset PYTHONDONTWRITEBYTECODE
exec "$python" -m gpu_report "$@"
