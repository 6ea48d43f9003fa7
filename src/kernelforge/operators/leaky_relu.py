"""input where positive, else negative_slope * input."""

from kernelforge.operators._pointwise import activation, activation_entries

OPERATOR = activation(
    "leaky_relu",
    activation_entries("leaky_relu", "negative_slope=0.01", inplace_function=True),
    scalars=("negative_slope",),
    cost=2,
)
