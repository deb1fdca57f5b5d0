"""The words that a snapshot may hold: an allow-list. A word of a text that is in none of these is replaced.

All of them are public and say nothing of who owns a machine: makers and products, drivers, settings, names of the
system's own folders and control groups. Lower case; looked up without regard to case.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARDWARE = _words(
    """
    a100x accelerator acpi active ada adapter adaptor adata address advanced aes af agn agp ahci ahv alder alibaba
    aliyun alma almalinux alpine altra amazon amd ampere ampere-1a anolis apollo apple arch architecture arm arm64
    array asic asmedia aspeed asrockrack asus asustek ata athlon ati atm atom audio azure azurelinux backplane
    baffin balloon bam barco bare base beach bhyve bionic black blackwell block blue bluefield bonaire bookworm
    bottlerocket bridge broadcast broadcom broadwell bronze bullseye bus buster by c cache caching caicos cannon
    caracal cardbus cascadelake cayman cbl ce cedar celeron center centos centrino cezanne cha channel chelsio chip
    chipset chromium cisco cloud cloudblazer cloudstack cmp cnvi co coffee coherence com comet common communications
    compal companion complex compliant compute computer computers configuration connection connectx console
    container-optimized control controller converged copper coprocessor core core-processor coreos corp corporate
    corporation cortex cos cpt cpu cpus cray crypto cryptographic crystal ctrl cypress data dbl dbm dc ddr ddrio
    debian debug decoder definition dell design desktop device devices dgx dh digitalocean disabled display dma dmi
    do dobson domain domu downstream dp dpu dram drive driver dsc dual dummy dx dynamic ec2 edition efa egx ehci
    elastic elektronik elkhart ellesmere emag embedded emerald emmc emulated en ena enabled endpoint engine
    engineering enhanced enterprise entropy epyc er error esi espi ethernet ex example execution expandable expander
    express expresssas external exxact fabric falcon family fanout fast fastlinq fbd fbm fc fch fcoe fedora fiber
    fibre filesystem fireflight firegl firemv firepro firestream flash flatcar focal foxconn fpga fsb fujitsu fw fx
    gaudi gb gbe ge geforce gemini gen general generation generic gentoo genuine geode gfx ghz giga gigabit gigabyte
    gl global gmbh gmch gme gms gnu gold google gpio gpp gpu grabber grace graphics graviton green grid gs gt gto
    gts gtx gve h3c haswell hat hawaii hba hbiu hbm2 hbm2e hbm3 hbm3e hca hcl hd hdmi heci heliotrope hetzner
    hewlett hgx high hisilicon hns homepna hopper host hp hpe hsuart ht huawei hub hvm hygon hynix hyper hyperv
    hypervisor hz i440fx ibm ice icelake ich9 ide ider ie ieee igp igx iio inc industries infiniband infinihost
    ingrasys innotek input inspur instinct integrated intel interface internal interrupt ioapic iobus ioc iommu ion
    iris isa iscsi ivybridge ixp jammy jetson juniper kabini kali kaveri kepler kioxia kodkod kryptos kunpeng kvm
    kylin lake lambda lan laptop layer le leap lenovo leopard lewisburg lexa limited link linux lite llc lom
    lovelace low lp lpc lsi ltd ltd. lts lx lynx mac machine maipo mana management mariner marvell matisse max max-q
    maxwell mb medfield media megaraid mei mellanox memory merrifield metal meteor mga mgx mhz micro micron
    microprocessor microsoft mig milan millennium minimal misc miscellaneous mitac mmc mobile mobility mode model
    models modem module monitor monitoring moorestown morphis mp ms msi mullins multi mx navi neoverse netlink
    netserver network netxtreme nforce nhi nic nitrox nixos noble nolan nutanix nvidia nvl nvlink nvme nvs nvswitch
    obsidian octeon ohci oland onyx ootpa opencloudos openeuler openstack opensuse optane opteron optimized opus
    oracle oraclecloud oreon orin os otg oxapic packard packet parallel parallels pascal pc pch pci pcie pcieport
    pcu peak penguin pensando pentium performance pex pfx phenom phi phoenixnap photon phy physical piix pitcairn
    platform platinum plow plucky plus plx pm pmc polaris ponte pop port ports poulsbo power poweredge powernv
    powerpc powerserver primary primergy pro processor processors product programmable proliant protocol proxmox
    pseries puma q35 qat qct qemu qlogic qm qpi qsfp quad quadro quanta quantacloud quantum quark quickassist
    quickdata quickpath r radeon rage raid raptor ras raspbian raven rdma realssd recovery red redhat redirection
    redwood refresh register registers release rembrandt remote renoir reporting reserved reut rhel rhev richland
    ridge ring riva rma roc rocky root router routing rtx rx ryzen samsung sandisk sandybridge sapphirerapids sas
    sata scalability scalable sch scientific scratchpad scsi sd sdi sdio seafoam secondary secure security semaphore
    semiconductor sensor serial series serval server seymour sfp shared side siemens silver single sku sky skylake
    sle sles smart smartnic smbus smi soc socket sol solarflare solid solios solutions sp spark spi sram ssata ssd
    standard starship status step stoney storage strataswitch stream subsidiaries subsystem sugon sumo sunrise super
    superchip supermicro superserver supersumo support suse switch sxm sxm2 sxm3 sxm4 sxm5 system systems tachyon
    tahiti talos target tb teal technologies technology tecnology tencent tencentos tesla theater thermal
    thinksystem thor threadripper thunderbolt thunderx ti tiger tile titan tm toe tonga toshiba trace transaction
    triton trixie trusted tumbleweed turing turks turquoise tyan uart ubox ubuntu uhci uhd ultra ultrastar unicast
    unified unit universal unsupported uos upstream usb usm v vangogh vecchio vega venus verde vermeer version vic
    video virtio virtual virtualbox virtualization vmse vmware volta volume vscom wifi wildcat wimax wire wireless
    wistron wiwynn workstation wx xe xen xenon xeon xfusion xgl xhci xilleon xl xmb xpress xt xtx zx
    """
)
"""Makers, products, operating systems: the words of DMI, CPU and PCI names and of os-release."""

DRIVERS = _words(
    """
    8250_pci aacraid aer ahci amd64_edac amd_iommu amdgpu amdkfd apple-dart arm-smmu-v3 ast ata_piix atlantic
    be2net bluefield_edac bnx2 bnx2x bnxt_en bnxt_re bochs-drm bochs_drm ccp cirrus cirrus-qemu cxgb4 dmar dpc
    dw_dmac e1000 e1000e efa efifb ehci-pci ena enic erdma fm10k gdrdrv gve habanalabs hfi1 hinic hns3 hpsa
    hv_netvsc hv_pci hyperv_drm hyperv_fb i10nm_edac i40e i40iw i801_smbus i915 iavf ib_core ib_qib ib_uverbs ice
    icx_uncore idpf idxd igb igb_uio igc intel_idxd intel_lpss intel_qat intel_uncore intel_vsec ioatdma ionic
    ionic_rdma iosf_mbi_pci irdma isst_if_mbox_pci isst_if_pci ivhd iw_cxgb4 iwlwifi ixgbe ixgbevf k10temp knem
    lpc_ich lpfc mana mana_ib megaraid_sas mei_me mgag200 mgag200drmfb mlx4_core mlx4_ib mlx5_core mlx5_ib
    mlx5_vdpa mlx5_vfio_pci mlxbf-tmfifo mlxbf_gige mlxfw mlxsw_core mpi3mr mpt3sas mtk_t7xx netvsc nfp nouveau
    nova-core nova_core ntb ntb_hw_amd ntb_hw_intel nv-mem nv_mem nv_mem_nc nv_peer_mem nvgrace-gpu-vfio-pci
    nvgrace_gpu_vfio_pci nvidia nvidia-nvlink nvidia-nvswitch nvidia_drm nvidia_fs nvidia_modeset nvidia_nvswitch
    nvidia_peermem nvidia_uvm nvidia_vgpu_vfio nvme octeon_ep ohci-pci pci-stub pci_hyperv pci_stub
    pci_switch_link pciback pcie_pme pciehp pcieport pcieport-driver peer_mem piix4_smbus pka-mlxbf plx_dma
    qat_4xxx qat_c6xx qede qedr qib qla2xxx qlcnic qxl r8169 radeon rdma_cm rdma_rxe serial sfc sfc_ef100 shpchp
    simpledrm siw skx_edac skx_uncore smartpqi smmu smmu3 snd_hda_intel switchtec tegra-pcie tegra194-pcie tg3
    uhci_hcd uio_hv_generic uio_pci_generic vesafb vfio vfio-pci vfio_iommu_type1 vfio_pci virtio virtio-pci
    virtio_blk virtio_net virtio_scsi vmd vmwgfx vmxnet3 wil6210 xe xen-pciback xhci_hcd xhci_pci xpmem
    """
)
"""Kernel modules, drivers of devices, and what registers below memory_peers or as an IOMMU."""

SETTINGS = _words(
    """
    abort adaptive all am any apptainer async auto aws-ofi aws_ofi backend basic bml btl cm cma coll compat32
    compute containerd cores crio cuda cuda_copy cuda_ipc cudamallocasync dc dc_mlx5 dc_x debug default detail
    disable disabled display docker eager enable enabled enroot epilog_slurmctld epilog_slurmd error exclusive
    expandable_segments f false fastest_first fastrak fastsocket fatal garbage_collection_threshold garden
    gaudi_gdr gdr_copy get get_zcopy gib gin gpudirect graph graphics gvisor han hcoll healthy hostname ib info
    inter intra ip isolate isolated kata kerneltree knem kubernetes ldoms lib libfabric libibverbs libnbc libnccl
    libnccl-env libnccl-net libnccl-net-gib libnccl-net-ofi libnccl-net-spcx libnccl-ofi-tuner libnccl-profiler
    libnccl-tuner libnccl-tuner-ofi lsf lxc lxc-libvirt map_cpu map_ldom mask_cpu mask_ldom max_split_size_mb mm
    mps mtl n native nccl net ngx no nodevfiles none null ob1 oci off ofi ok on openib osc pci_bus_id
    pinned_num_register_threads pinned_use_cuda_host_register plugin pmix pml podman posix pouch profiler
    prolog_slurmctld prolog_slurmd proot psm psm2 put put_zcopy pyxis quiet r2 rank rank_ldom rc rc_mlx5 rc_v
    rc_verbs rc_x rdma rdma-sharp rdmasharp reservation rkt rma rndv rocm rocm_copy rocm_gdr rocm_ipc
    roundup_power2_divisions rsh runsc self shared shared_memory sharp shm short singularity slurm sm smcuda so
    socket sockets spcx spectrum spectrum-x srd static_plugin strict sync systemd-nspawn sysv t task_epilog
    task_prolog tcp tcpx tcpxo threads tm topo trace true tuned tuner ucc ucx ud ud_mlx5 ud_v ud_verbs ud_x unset
    user usnic utility vader verbose version video void warn warning whole wsl wsl2 xpmem y yalla yes ze_copy
    ze_gdr ze_ipc
    """
)
"""Values of settings of NCCL's neighbours: UCX, Open MPI, PyTorch, Slurm, containers."""

NAMES = _words(
    """
    abort adaptive addr affinity agent algo algorithm allow allreduce alltoall async available avoid barrier base
    bcast bind binding bindings blocking btl buffer buffsize by cache check chunk cnt coll collnet comm common
    comms component components conf config connection connection_type control coord copy count cpu cpus cross cta
    ctas cuda cuda_support data dc debug delay dest desync device devices dir direct disable disabled dump dynamic
    eager efa enable enabled env ep error errors exclude fabric fence fi file filter flags flight flow fork
    framework free free_list gdr get gid gloo gpu handle handling hca hcoll_enable hcoll_np heartbeat high hip
    hooks hwloc hybrid ib ib_pkey id if ifaces ifname include index info init inline interval ipc job launch leave
    len level library limit links list local log map max mca mechanism mechanisms mem memory memtype millisec min
    mlx5 mmap mode module mpi mtl nan nccl nchannels net nic node nonblocking nrings nsocks nthreads num numa
    nvidia nvls odls ofi ompi oob opal openib order ordering orte osc oversubscribe p2p param params pci pe per
    pernode perthread pinned plm pml policy poll polling port ports posix ppr prefix print priority profile
    progress proto protos provider prte put pxn qps queue range rank ras rc rccl rdma receive receive_queues
    record recorder recv reg register relaxed report retry ring rings rmaps rndv roce rocr routing rules rx safe
    scheme sec seg selection send shm show signals single size sl slurm sm smcuda socket split sr stack static
    stats step stream streams subsys tc tcp tests threads thresh threshold timeout tls torch tos total trace
    transport tree trigger tx ucx ucx_devices ucx_opal_mem_hooks ucx_tls ud unbalanced universe unused use vader
    vars verbose verbs version wait warn warn_unused world zcopy zero
    """
)
"""Parts of the names of environment variables, between underscores."""

VERSIONS = _words(
    """
    64 64k a aarch64 alinux all alpha amd64 amzn anolis arm64 armv7l aws azure b beta bin bluefield bottlerocket
    build c centos cloud coreos cos cpu cray cu cuda d dcgm deb debian default desktop dev dirty doca dynamic e el
    elrepo f fc final fips flatcar g ga gcp generic generic-64k git gke gke-optimized gpu gpuopt gvisor h hardened
    hg hotfix hpcx hwe i386 i686 internal jetson kvm linux linuxkit local longterm lowlatency lts lustre lustre2
    mainline microsoft mlnx mlnx_ofed mpi noarch nv nvidia nvinternal oem ofed ofed_internal ol omni ompi open
    openmpi oracle p pae patch post ppc64el ppc64le pre preempt prefetch preview pve r rc realtime rel release
    rhel riscv64 rocm rt s390x server shasta shasta_13 sles slurm smp sp src stable standard suse svn talos tegra
    tlinux u ubuntu ucx uek update v virt wsl wsl1 wsl2 x x86 x86_64 xanmod xen xpu z zen
    """
)
"""Parts of version numbers that are no digits (`5.15.0-97-generic`, `2.5.0+cu124`)."""

CGROUPS = _words(
    """
    actions app apptainer background batch besteffort blkio buildkit burstable cgroup cloud-init condor conmon
    container containerd containers cpu cpuacct cpuset cri crio cron crond dbus dcgm debug default delegate
    devices docker docker-buildx ecs enroot extern fabricmanager freezer garden getty gnome guaranteed htcondor
    hugetlb hybrid imex init interactive io job jobid jobs k3s k8s kube kubelet kubepods libpod libvirt lsf lxc
    lxcfs machine memory misc namespaces nested net_cls net_prio nspawn nvidia o org parent payload pbs pbs_jobs
    pbspro perf_event persistenced pids pod podman pods pyxis qemu rdma run runtime scope service session
    singularity slice slurm slurmctld slurmd slurmstepd spawn ssh sshd step steps supervise system systemd task
    tasks terminal tty uid unified user vm vte
    """
)
"""Parts of the paths of control groups."""

PATHS = _words(
    """
    .cache .config .local .nccl.conf .pyenv .venv aarch64-linux-gnu amazon anaconda anaconda3 apps aws-ofi-nccl base
    beegfs bin boot cache conda conf.d config configs cuda data debug dev dist-packages efa env envs etc fastrak fs
    gib gpfs graph graph.xml home hpcx include install lib lib-dynload lib32 lib64 libnccl.so libnccl.so.2 libx32
    local log logs lustre mambaforge media micromamba microsoft miniconda miniconda3 miniforge miniforge3 mnt
    modules mpi mps nccl nccl-topo.xml nccl.conf nccl_rdma_sharp_plugin nccl_spectrum-x_plugin nccl_topo.xml
    ncv4-topo.xml ndv2-topo.xml ndv4-topo.xml ndv5-topo.xml nfs nix nvidia nvidia-mps nvidia-persistenced
    nvidia-topologyd ofi-nccl openmpi opt out pipx pkgs plugin plugins powerpc64le-linux-gnu proc project projects
    python python3 root run sbin scratch share shared shm site-packages snap software spack srv store sw sys tcpx
    tcpxo tmp topo topo.xml topology topology.xml torch users usr uv var venv version.py versions virtualenv
    virtualtopology.xml wheels work workspace x86_64-linux-gnu xml
    """
)
"""Whole elements of paths."""

KERNEL = _words(
    """
    allow_unsafe_interrupts always amd_iommu arm-smmu assign-busses assign_busses auto autosuspend bfsort
    blacklist cbiosize cbmemsize cgroup_enable check_enable_amd_mmconf compat conf1 conf2 config_acs cpu cpuset
    default default_hugepagesz disable disable_acs_redir disable_idle_d3 disable_vga disabled domain downstream
    dpc-native driver earlydump ecrc enable enable_sriov enabled fake fbdev force forcedac group_mf hpbussize
    hpiosize hpmemsize hpmmioprefsize hpmmiosize hugepages hugepagesz id ids intel_iommu iommu isolcpus lazy
    madvise managed_irq mem_encrypt memory modeset modprobe module module_blacklist multifunction n native never
    noacpi noaer noats nobfsort nocrs nodomains nohmat nohz nohz_full nommconf nomsi nopt nosme nouveau numa
    numa_balancing nvidia nvidia-drm nvidia-modeset nvidia-uvm nvidia_drm nvreg_coherentgpumemorymode
    nvreg_dmaremappeermmio nvreg_enablegpufirmware nvreg_enablepciegen3 nvreg_enablepcierelaxedorderingmode
    nvreg_enableresizablebar nvreg_enablestreammemops nvreg_excludedgpus nvreg_grdmapcitopocheckoverride
    nvreg_nvlinkdisable nvreg_openrmenableunsupportedgpus nvreg_preservevideomemoryallocations
    nvreg_registrydwords nvreg_restrictprofilingtoadminusers off on passthrough pci pcie_acs_override pcie_aspm
    pcie_bus_peer2peer pcie_bus_perf pcie_bus_safe pcie_bus_tune_off pcie_ports performance powersave
    powersupersave pt rd realloc resource_alignment skip_isa_align sm_off sm_on sme smmu soft strict systemd tlb
    transparent_hugepage unified_cgroup_hierarchy use_crs vfio vfio-pci vfio_iommu_type1 vfio_pci y
    """
)
"""Options of the kernel's command line, of NVIDIA's module, and their values."""

REGISTRY = _words(
    """
    forcep2p full maximum minimum nvreg off partial peermappingoverride rmbar1restrictsize rmbar1size
    rmdisablegpuaspmflags rmdisablep2p rmenableacpi rmenableresizablebar rmforcebar1 rmforcep2ptype
    rmgpufabricprobe rmnvlinkbandwidth rmnvlinkbandwidthlinkcount rmnvlinkcontrol rmnvlinkdisable
    rmnvlinkdisablelinks rmnvlinkenable rmp2pover rmpcieflreaddisable rmpcielinkspeed rmprofilingadminonly
    rmuvmenable
    """
)
"""Keys of `RegistryDwords` of NVIDIA's module."""

DETAILS = _words(
    """
    a about absent after all among an and answer answered answers exceed probes sent valid
    any argument arguments ascii asked asking at attribute
    attributes be before byte bytes call calls cannot captured cgroup child command could crashed cuda decode
    denied dict did didn done driver element embedded empty error errors exit failed file float form found from
    function give given has here hung if in index information installed int invalid is it its kernel killed last
    leads libcuda.so.1 libnvidia-ml.so.1 library limit line list loaded lost machine many matrix memory mib
    missing more ms name no nobody none nonetype nor not not_recorded not_visible_here nothing null nvidia-ml-py
    nvml object of on one open or out over own parse pci.ids permission position positional process program psutil
    psutil.net_if_addrs pynvml question questions ran range read recorded run s same set shared signal so start
    started status str string subscriptable such take takes tell than that the these they this those time timed
    timed_out to too topocheck tree tuple unexpected unknown unparsable unsupported utf-8 value values was were
    what which with within without wrote
    """
)
"""Words of topocheck's own reasons for a missing answer."""
