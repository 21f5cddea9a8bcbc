"""Trained digits models in diffusers' format; a wheel carries ``digits-unet-flow`` only."""
