#!/usr/bin/env bash
# Print the folder of a virtual environment with ONNX Runtime's ORTModule and the torch that it works with, for
# ``engine: ort``; make test-ort runs it. Made once per machine and lock, outside the clone (6 GB, 5 minutes, a C++
# compiler); BERT_TEST_ORT names another one, which is taken as it is.
#
#   PYTHONPATH=trainer "$(tools/ort.sh)"/bin/python -m bert_trainer --config run.json
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=images/trainer/locks/ort.lock
extensions=images/trainer/locks/build_ort_extensions.py
version=$(sed -n 's/^onnxruntime-training==\([^ ]*\).*/\1/p' "$lock")
digest=$(cat "$lock" "$extensions" tools/ort.sh | sha256sum | cut -c1-12)
venv=${BERT_TEST_ORT:-${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/ort-$version-$digest}

if [ -z "${BERT_TEST_ORT:-}" ] && [ ! -e "$venv/.complete" ]; then
    echo "ort: installing onnxruntime-training $version and its torch into $venv" >&2
    base=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
    if [ "$("$base" -c 'import sys; print(sys.version_info[:2] == (3, 11))')" != True ]; then
        echo "ort: got $("$base" --version); allowed: Python 3.11, the newest that onnxruntime-training $version has" \
            "wheels for; run make setup PYTHON=python3.11" >&2
        exit 2
    fi
    .venv/bin/uv venv --quiet --clear --python "$base" "$venv" >&2
    .venv/bin/uv pip install --quiet --python "$venv/bin/python" --require-hashes -r "$lock" >&2
    echo "ort: building ORTModule's extensions (2 minutes on two free cores)" >&2
    "$venv/bin/python" "$extensions" >"$venv/extensions.log" 2>&1 || { tail -20 "$venv/extensions.log" >&2; exit 1; }
    touch "$venv/.complete"
fi
echo "$venv"
