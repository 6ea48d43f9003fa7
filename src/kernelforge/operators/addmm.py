"""beta * input + alpha * (mat1 @ mat2)."""

from kernelforge.operators._scaled_products import scaled_product

OPERATOR = scaled_product("addmm", "mat1", "mat2")
