#!/usr/bin/env bash
# Print the folder of a virtual environment with what makes the documentation's site, from tools/docs.lock; make docs
# runs it. Made once per machine and lock, outside the clone (76 MB, seconds); the site itself needs no network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=tools/docs.lock
base=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
# Newer interpreters get newer packages out of the same lock.
digest=$({ cat "$lock" tools/docs.sh; "$base" --version; } | sha256sum | cut -c1-12)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/docs-$digest

if [ ! -e "$venv/.complete" ]; then
    echo "docs: installing Sphinx into $venv" >&2
    .venv/bin/uv venv --quiet --clear --python "$base" "$venv" >&2
    .venv/bin/uv pip sync --quiet --python "$venv/bin/python" --require-hashes "$lock" >&2
    touch "$venv/.complete"
fi
echo "$venv"
