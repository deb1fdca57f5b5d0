"""What of the environment and the kernel's command line topocheck may look at. Everything else never enters.

Kept in one place because it is the promise that lets a recording be sent to strangers.
"""

from __future__ import annotations

_VARIABLE_PREFIXES = ("NCCL_", "TORCH_NCCL_", "UCX_", "RCCL_", "GLOO_", "OMPI_COMM_WORLD_", "OMPI_MCA_")
_VARIABLES = frozenset(
    """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES GPU_DEVICE_ORDINAL
    ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING CUDA_MPS_PIPE_DIRECTORY OMP_NUM_THREADS
    PYTORCH_CUDA_ALLOC_CONF TORCH_FR_BUFFER_SIZE TORCH_DISTRIBUTED_DEBUG
    RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR MASTER_PORT
    PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS PMIX_RANK
    SLURM_JOB_ID SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_NNODES SLURM_JOB_NUM_NODES
    SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_TASKS_PER_NODE
    SLURM_STEP_TASKS_PER_NODE SLURM_JOB_GPUS SLURM_STEP_GPUS SLURM_GPUS_ON_NODE SLURM_CPU_BIND SLURMD_NODENAME
    SLURM_JOB_EXCLUSIVE SLURM_SCRIPT_CONTEXT SLURM_NODE_IS_HEALTHY
    KUBERNETES_SERVICE_HOST container LANG LC_ALL NO_COLOR
    """.split()
)

_KERNEL_OPTIONS = (
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "arm-smmu",
    "pci",
    "pcie_aspm",
    "pcie_ports",
    "pcie_acs_override",
    "vfio",
    "nvidia",
    "nouveau",
    "rd.driver.blacklist",
    "modprobe.blacklist",
    "module_blacklist",
    "numa",
    "numa_balancing",
    "isolcpus",
    "nohz_full",
    "hugepages",
    "default_hugepagesz",
    "transparent_hugepage",
    "mem_encrypt",
    "cgroup_enable",
    "systemd.unified_cgroup_hierarchy",
)


def variable_allowed(name: str) -> bool:
    """Tell whether a variable of the environment may be looked at and recorded."""
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)


def kernel_option_allowed(option: str) -> bool:
    """Tell whether one word of the kernel's command line may be looked at and recorded."""
    name = option.split("=", 1)[0]
    return any(name == o or name.startswith((o + ".", o + "_")) for o in _KERNEL_OPTIONS)
