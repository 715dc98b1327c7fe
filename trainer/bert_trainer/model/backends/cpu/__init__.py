"""The step's kernels for CPUs: C++ in ``native/``, compiled by ``build``, loaded by ``library``.

``functions`` makes them differentiable. Each has a counterpart in plain operations, which runs where no kernel does: on
GPUs, in fp64 and fp16, and where the kernels are not built.
"""
