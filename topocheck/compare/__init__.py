"""One engine for what differs between two or many nodes."""
