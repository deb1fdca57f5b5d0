"""The version of this program: the package, the reports and the build all read it here."""

__version__ = "0.2.0"
