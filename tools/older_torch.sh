#!/usr/bin/env bash
# Print the folder of a virtual environment with an older torch, in which make test-older-torch runs tests.
#
#   tools/older_torch.sh 2.7|2.4
#
# 2.7: torch 2.7.1, the newest with code for V100. 2.4: torch 2.4.1, what ONNX Runtime's training needs, without that.
# Made once per machine, outside the clone (6 GB, of which uv's cache holds most already where an image's lock was
# installed before), from two lock files with hashes: torch and what belongs to it as in the image, the rest, tests'
# libraries included, as in .venv. Horovod is not among them: ranks use torch.distributed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case ${1:-} in
    2.7) lock=images/trainer/locks/torch-2.7.lock ;;
    2.4) lock=images/trainer/locks/ort.lock ;;
    *) echo "$0: got '${1:-}'; allowed: 2.7, 2.4" >&2; exit 2 ;;
esac

# What the image's lock names, and of the others what it does not. onnxruntime-training lies where onnxruntime does;
# torch 2.4 is broken by an onnxscript of today, and needs none;
# without Horovod nobody needs cmake, and without mypy and transformers' Trainer what they install.
combine() {
    awk '
        FNR == 1 { file++ }
        /^[^ #]/ { split($1, parts, "=="); name = parts[1] }
        /^#/ { next }
        file == 1 { seen[name] = 1; if (name != "onnxruntime-training") print; next }
        !(name in seen) && name !~ /^(torch|triton|nvidia-.*|cuda-.*|cmake|mypy|onnx-ir|onnxscript|ruff)$/' "$lock" requirements.lock
}

locked=$(combine)
key=$(sha256sum <<<"$locked" | cut -c1-12)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/torch-$1-$key
if [ ! -e "$venv/.complete" ]; then
    echo "older-torch: installing torch $1 into $venv (3 GB of downloads the first time)" >&2
    .venv/bin/uv venv --quiet --clear --python "$(.venv/bin/python -c 'import sys; print(sys._base_executable)')" "$venv" >&2
    echo "$locked" >"$venv/requirements.lock"
    .venv/bin/uv pip sync --quiet --python "$venv/bin/python" --require-hashes "$venv/requirements.lock" >&2
    touch "$venv/.complete"
fi
echo "$venv"
