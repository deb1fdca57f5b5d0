"""What the world knows, as data files with a source per row. No code knows a product by name."""
