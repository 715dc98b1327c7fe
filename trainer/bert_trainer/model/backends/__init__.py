"""Ways to compute the model: plain operations, C++ kernels on CPUs, compiled functions on GPUs."""
