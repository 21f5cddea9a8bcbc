"""Compiled denoisers, and the module itself."""
