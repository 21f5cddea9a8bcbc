"""The folder that export writes: manifest, files, engine records."""
