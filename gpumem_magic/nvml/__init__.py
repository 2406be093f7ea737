"""NVML as typed readings; every missing value carries its reason."""
