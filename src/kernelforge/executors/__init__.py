"""Run a job in another process and survive whatever it does. Knows nothing about kernels."""
