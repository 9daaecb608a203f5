"""Run models with torch: on a graphics card (CUDA, ROCm, Metal, Intel), or on the processor."""
