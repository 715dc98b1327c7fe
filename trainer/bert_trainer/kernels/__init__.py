"""The step's own kernels for processors: C++ in ``native/``, built by ``build``, loaded by ``library``.

``functions`` gives them their gradients. Everything here has a plain counterpart in ``bert_trainer.model``, which runs
wherever a kernel does not: on GPUs, in fp64 and fp16, and where nobody has built them.
"""
