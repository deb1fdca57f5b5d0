"""Which rows a lab has, and what of its tables they fill. Pure."""
