"""Devices that speak OpenCL, for opforge. Installed, it is found by its entry point: see accelerator.py."""
