"""beta * input + alpha * (batch1 @ batch2), batched."""

from kernelforge.operators._scaled_products import scaled_product

OPERATOR = scaled_product("baddbmm", "batch1", "batch2")
