"""Whether GPUDirect P2P and RDMA can be enabled for each pair, with the chain of reasons."""

from topocheck.gpudirect.verdicts import judge

__all__ = ["judge"]
