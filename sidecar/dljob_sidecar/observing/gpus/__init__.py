"""The GPUs of this machine: reading by NVML on a thread, checks for use, and names."""
