"""Checks of PCIe links and devices."""
