"""zeus-trt: diffusion models with fewer network calls, on compiled engines."""

__version__ = "0.1.0"
