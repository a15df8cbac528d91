"""What the hardware decides: device, kernels, micro-batch, memory, and the plan that is printed."""
