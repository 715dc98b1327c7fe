#!/usr/bin/env bash
# Print the folder of a virtual environment with TensorFlow, which tests compare with; make test-tensorflow runs it.
# Made once per machine, outside the clone (1.5 GB); BERT_TEST_TENSORFLOW names another one, which is taken as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=2.21.0
venv=${BERT_TEST_TENSORFLOW:-${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/tensorflow-$version}

if [ -z "${BERT_TEST_TENSORFLOW:-}" ] && [ ! -e "$venv/.complete" ]; then
    echo "tensorflow: installing tensorflow-cpu $version into $venv" >&2
    .venv/bin/uv venv --quiet --clear --python "$(.venv/bin/python -c 'import sys; print(sys._base_executable)')" "$venv" >&2
    .venv/bin/uv pip install --quiet --python "$venv/bin/python" "tensorflow-cpu==$version" >&2
    touch "$venv/.complete"
fi
echo "$venv"
