"""The versions of this program and of its JSON: the package, the reports and the build all read them here."""

__version__ = "0.2.0"
SCHEMA_VERSION = "2.0"
"""Of every JSON document; a change of a name or a meaning is a new major (docs/schema/)."""
