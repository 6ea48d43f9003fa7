"""Certified kernels that are kept on this machine, and proposed again where the same variant is met."""
