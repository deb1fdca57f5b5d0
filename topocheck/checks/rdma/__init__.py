"""Checks of RDMA devices and GPUDirect RDMA."""
