"""What NCCL makes of a machine: settings, its own path classes, transports, topology files and logs."""
