"""The GPUs of this machine: read by NVML from a thread of its own, held to be empty or not, and named to a training."""
