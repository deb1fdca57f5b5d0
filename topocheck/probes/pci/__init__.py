"""PCI: sysfs, configuration space, the text of lspci."""
