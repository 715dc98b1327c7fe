"""Build ORTModule's C++ extensions into the installed onnxruntime-training, without CUDA.

    python build_ort_extensions.py

Needs a C++ compiler and Python's headers, and takes two minutes of two cores. ORTModule refuses to start without
them. What its own command (``python -m onnxruntime.training.ortmodule.torch_cpp_extensions.install``) builds depends on
whether the wheels were made for CUDA, not on whether the machine has its compiler: PyPI's are, so that it stops on a
machine without one. The extensions for GPUs are not built here.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

# Before the import: without its extensions ORTModule is usable in commands started with -m alone.
sys.argv.append("-m")

from onnxruntime.training import ortmodule  # noqa: E402
from onnxruntime.training.ortmodule.torch_cpp_extensions.install import build_torch_cpp_extensions  # noqa: E402

if __name__ == "__main__":
    ortmodule.ONNXRUNTIME_CUDA_VERSION = None
    build_torch_cpp_extensions()
    shutil.rmtree(Path(ortmodule.ORTMODULE_TORCH_CPP_DIR) / "build")  # 40 MB of objects
