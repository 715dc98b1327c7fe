#!/bin/sh
# Install PyTorch, and what only PyTorch needs, into a virtual environment.
#
#   install-torch.sh VENV LOCK ACCELERATOR [INDEX] [VERSION]
#
# LOCK holds torch, triton, CUDA's libraries and, where it is used, ONNX Runtime's training, with their hashes. INDEX (a
# wheel index) or VERSION take torch from elsewhere or another one; its dependencies then come from the same index,
# without hashes.
#
# ACCELERATOR cpu leaves out of wheels that were made for CUDA what is read at run time and by a GPU only: triton,
# cuDNN's engines, dense solvers, NVSHMEM's device code, ONNX Runtime's half for GPUs. What libtorch itself is linked with
# has to stay, used or not.
set -eu
venv=$1 lock=$2 accelerator=$3 index=${4:-} version=${5:-}
pip="$venv/bin/pip install -q --no-cache-dir --no-compile --disable-pip-version-check"
case $accelerator in
    cpu | cuda) ;;
    *) echo "ACCELERATOR: got '$accelerator'; allowed: cpu, cuda" >&2; exit 2 ;;
esac

if [ -z "$index$version" ]; then
    $pip --no-deps --require-hashes -r "$lock"
    # The few pure Python packages that torch imports come with the other libraries.
else
    [ -n "$version" ] || version=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$lock")
    # shellcheck disable=SC2086 - several words
    $pip ${index:+--index-url "$index"} "torch==$version"
fi

[ "$accelerator" = cpu ] || exit 0
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
"$venv/bin/pip" uninstall -q -y triton >/dev/null 2>&1 || true
rm -rf "$packages"/nvidia/cudnn/lib/libcudnn_*.so.* "$packages"/nvidia/*/include \
    "$packages"/nvidia/*/lib/libcusolver*.so.* "$packages"/nvidia/*/lib/libnvperf_*.so* \
    "$packages"/nvidia/nvshmem/lib/*.bc "$packages"/nvidia/nvshmem/lib/nvshmem_*.so.* \
    "$packages"/nvidia/*/lib/*.a "$packages"/onnxruntime/capi/libonnxruntime_providers_cuda.so \
    "$packages"/torch/lib/libtorch_cuda_linalg.so
