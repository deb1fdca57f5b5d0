"""One file per format, found by walking this folder (readers/registry.py). Each has a READER."""
