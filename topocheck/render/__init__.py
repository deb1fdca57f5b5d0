"""Takes a result, returns text. Imports the types of any room and calls none of their work."""
