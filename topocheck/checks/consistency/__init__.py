"""Checks that sources agree with each other."""
