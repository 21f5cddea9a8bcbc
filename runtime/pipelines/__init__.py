"""diffusers pipelines with skipped calls."""
