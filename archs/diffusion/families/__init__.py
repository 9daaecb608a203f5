"""Image and video model families, one module each with its close relatives; `archs.diffusion.detection` finds them."""
