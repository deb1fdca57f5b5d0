"""The labs: what each asks, the tables it fills, how they are read. `topocheck lab list` and docs/labs.md show it."""

from __future__ import annotations

from topocheck.model.lab import Column, CurveSpec, Lab, TableSpec

BACKEND = Column(key="backend", title="backend")
MEMORY = Column(key="memory", title="memory", about="host or gpu: where the buffers live")
RANKS = Column(key="ranks", title="ranks")
SERVERS = Column(key="servers", title="servers", about="nodes that these ranks fill; empty where no whole number")
SIZE = Column(key="size_b", title="size", unit="B")
TIME = Column(key="time_us", title="time", unit="us", about="mean over ranks, median of the samples")
PREDICTED = Column(key="predicted_us", title="predicted", unit="us", about="by the cost model, from alpha and beta")
DATA = Column(key="data", title="data", about="whether what came was compared and right")
OF_PREDICTED = Column(key="of_predicted", title="x pred.", unit="ratio", about="time / predicted")
METHOD = Column(
    key="gradients",
    title="method",
    about="of compression: 16 or 8 bits a number (/512: a scale for each 512), the largest 1 %, signs, or a matrix of "
    "rank 1",
)
FIT_COLUMNS = (
    Column(key="alpha_us", title="alpha", unit="us", about="what a message costs whatever its size"),
    Column(key="alpha_low_us", title="from", unit="us", about="95 % interval"),
    Column(key="alpha_high_us", title="to", unit="us"),
    Column(key="beta_gb_s", title="beta", unit="GB/s", about="the rate of its bytes"),
    Column(key="beta_low_gb_s", title="from", unit="GB/s", about="95 % interval"),
    Column(key="beta_high_gb_s", title="to", unit="GB/s"),
)
LINK = TableSpec(
    name="link",
    title="One message: t = alpha + m / beta",
    columns=(BACKEND, MEMORY, Column(key="pair", title="pair"), *FIT_COLUMNS),
)
ALL = ("nccl", "gloo", "mpi")

LABS = (
    Lab(
        name="record",
        question="What does the experiment run on?",
        tables=(),
        fewest=1,
        reading="One entry for each kind of node; equal nodes are one entry with their names.",
    ),
    Lab(
        name="p2p",
        question="What do latency and bandwidth between two ranks come to, by message size and backend?",
        backends=ALL,
        tables=(
            TableSpec(
                name="messages",
                title="Messages between two ranks",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="pair", title="pair"),
                    SIZE,
                    Column(key="latency_us", title="latency", unit="us", about="half a round trip, as osu_latency"),
                    Column(key="bandwidth_mb_s", title="bandwidth", unit="MB/s", about="one direction, as osu_bw"),
                    Column(key="bibandwidth_mb_s", title="bibandwidth", unit="MB/s", about="both, as osu_bibw"),
                    DATA,
                ),
                curves=(
                    CurveSpec(x="size_b", y=("latency_us",), by=("pair",), log=True),
                    CurveSpec(x="size_b", y=("bandwidth_mb_s", "bibandwidth_mb_s"), by=("pair",)),
                ),
            ),
            LINK,
        ),
        reading="Latency is flat while alpha counts, then grows with the size; bandwidth tends to beta.",
        source="OSU Micro-Benchmarks (osu_latency, osu_bw, osu_bibw; windows of 16 messages)",
    ),
    Lab(
        name="collectives",
        question="What do gather, scatter and ways of all_reduce take, and does the cost model say the same?",
        backends=ALL,
        tables=(
            TableSpec(
                name="collectives",
                title="Collectives",
                columns=(
                    BACKEND,
                    MEMORY,
                    RANKS,
                    SERVERS,
                    Column(key="collective", title="collective"),
                    Column(
                        key="algorithm",
                        title="by",
                        about="the backend's own call, or send and receive in a ring; nodes k x g: in each node of g, "
                        "then between k nodes, then in each node",
                    ),
                    SIZE,
                    TIME,
                    PREDICTED,
                    OF_PREDICTED,
                    DATA,
                ),
                curves=(
                    CurveSpec(
                        x="size_b",
                        y=("time_us",),
                        by=("collective", "algorithm"),
                        chart=("backend", "memory", "ranks"),
                        log=True,
                    ),
                ),
            ),
            LINK,
        ),
        reading="The hierarchical all_reduce gains where links within a node are faster than those between nodes; on "
        "one node (groups of ranks stand for nodes there) it shows the cost of its three phases next to the flat ring.",
        source="Thakur, Rabenseifner, Gropp 2005; Patarasuk and Yuan 2009; hierarchical as Horovod's and NCCL's: "
        "reduce_scatter within, all_reduce between, all_gather within",
    ),
    Lab(
        name="broadcast",
        question="How many pieces should a ring broadcast be cut into?",
        backends=ALL,
        tables=(
            TableSpec(
                name="pieces",
                title="Broadcast of N bytes along a ring of K ranks in S pieces",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="ranks", title="K", about="ranks"),
                    SIZE,
                    Column(key="pieces", title="S", about="pieces"),
                    TIME,
                    Column(key="formula_us", title="N(S+K-2)/(S B)", unit="us", about="bandwidth alone"),
                    Column(key="predicted_us", title="with alpha", unit="us", about="(S+K-2)(alpha + N/(S beta))"),
                    DATA,
                    Column(key="remark", title=""),
                ),
                curves=(
                    CurveSpec(
                        x="pieces", y=("time_us", "formula_us", "predicted_us"), chart=("backend", "memory", "ranks")
                    ),
                ),
            ),
            LINK,
        ),
        reading="Time falls with S towards N/B, until S messages' latencies outweigh what is gained.",
        source="N(S+K-2)/(S B): K - 1 hops of the first piece, then a piece a step; alpha once a step",
    ),
    Lab(
        name="bounds",
        question="What does any algorithm need on this node's own graph, and how near do ring and tree come?",
        fewest=1,
        tables=(
            TableSpec(
                name="bounds",
                title="Lower bounds: S alpha + (R/C) L beta",
                columns=(
                    Column(key="collective", title="collective"),
                    Column(key="steps", title="S >=", about="messages one after the other"),
                    Column(key="rounds", title="R/C >=", about="chunks over the narrowest link for one of each rank"),
                    Column(key="time_us", title="at least", unit="us", about="S alpha + (R/C) L beta"),
                    Column(key="ring", title="ring S, R/C"),
                    Column(key="ring_us", title="takes", unit="us"),
                    Column(key="tree", title="tree S, R/C"),
                    Column(key="tree_us", title="takes", unit="us"),
                ),
            ),
        ),
        reading="S counts messages one after the other, R/C what the narrowest link must carry for one chunk of each "
        "rank. Ring and tree are taken at their best: all links of every GPU in use.",
        source="Z. Cai et al., Synthesizing optimal collective algorithms (SCCL), PPoPP 2021",
    ),
    Lab(
        name="parameter-server",
        question="Ring or parameter servers, one or several, synchronous or not: steps a second over the workers?",
        backends=ALL,
        tables=(
            TableSpec(
                name="servers",
                title="Steps of all workers together, a second",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(
                        key="scheme",
                        title="scheme",
                        about="sums by a ring, or at servers (PS) that wait for all (sync) or for nobody (async)",
                    ),
                    Column(key="workers", title="workers", about="ranks that compute"),
                    Column(key="ps", title="servers", about="ranks that hold a part of the parameters each"),
                    Column(key="ranks", title="ranks"),
                    SIZE,
                    Column(key="measured", title="measured", unit="steps/s"),
                    Column(
                        key="predicted",
                        title="predicted",
                        unit="steps/s",
                        about="by the cost model, from alpha and beta",
                    ),
                    Column(key="staleness", title="staleness", about="mean updates by others between pull and push"),
                    Column(key="most_stale", title="most", about="the largest staleness"),
                ),
                curves=(CurveSpec(x="workers", y=("measured", "predicted"), by=("scheme", "ps"), log=True),),
            ),
            LINK,
        ),
        reading="A server's port carries every worker's gradients, so its steps a second stop growing with them; "
        "a ring carries the same on every port. Asynchronous workers do not wait, and compute with stale parameters.",
        source="M. Li et al., OSDI 2014; W. Zhang et al., IJCAI 2016 (staleness)",
    ),
    Lab(
        name="compression",
        question="What does gradient compression gain and cost, at 1, 2 and 4 devices?",
        backends=ALL,
        fewest=1,
        tables=(
            TableSpec(
                name="training",
                title="Training on digits, and the step of a larger model",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="ranks", title="devices"),
                    METHOD,
                    Column(key="epochs", title="epochs"),
                    Column(key="train_s", title="train", unit="s", about="all epochs"),
                    Column(key="accuracy", title="accuracy", unit="share", about="of the images held out"),
                    Column(key="step_us", title="step", unit="us", about="of the larger model, exchange included"),
                    Column(
                        key="of_full", title="x full", unit="ratio", about="against full precision on as many devices"
                    ),
                    Column(key="error", title="error", unit="relative", about="|g - e| / |e| of the step's gradient"),
                ),
                curves=(CurveSpec(x="ranks", y=("step_us",), by=("gradients",), log=True),),
            ),
            TableSpec(
                name="parts",
                title="One exchange of all gradients, in its parts",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="ranks", title="devices"),
                    METHOD,
                    Column(key="payload_b", title="payload", unit="B", about="one rank's gradients, compressed"),
                    Column(key="sent_b", title="sent", unit="B", about="by each rank, by a ring"),
                    Column(key="compress_us", title="compress", unit="us"),
                    Column(key="send_us", title="send", unit="us"),
                    Column(key="decompress_us", title="decompress", unit="us"),
                    Column(key="sum_us", title="sum", unit="us", about="compress + send + decompress"),
                    Column(key="of_full", title="x full", unit="ratio"),
                ),
            ),
        ),
        reading="Compression pays where sending takes longer than compressing, sending less and decompressing. What"
        " is sent by all_gather (8 bits, top-k, signs) grows with the devices.",
        source="bandwidth/compression.py names the papers",
    ),
    Lab(
        name="fusion",
        question="How large should fusion buffers be, and does t = alpha + m / beta predict the time?",
        backends=ALL,
        tables=(
            TableSpec(
                name="fit",
                title="Collectives: t = alpha + m / beta, and the buffer that reaches 80 % of the peak",
                columns=(
                    BACKEND,
                    MEMORY,
                    RANKS,
                    Column(key="collective", title="collective"),
                    *FIT_COLUMNS,
                    Column(key="buffer_b", title="buffer", unit="B", about="that reaches 80 % of beta"),
                    Column(key="buffer_low_b", title="from", unit="B", about="95 % interval"),
                    Column(key="buffer_high_b", title="to", unit="B"),
                ),
            ),
            TableSpec(
                name="buffers",
                title="All gradients in fused buffers",
                columns=(
                    BACKEND,
                    MEMORY,
                    RANKS,
                    Column(key="collective", title="collective"),
                    Column(key="fused", title="fused", about="by index of layer (the first k, the next k) or by size"),
                    Column(key="buffers", title="buffers"),
                    Column(key="largest_b", title="largest", unit="B", about="of these buffers"),
                    TIME,
                    PREDICTED,
                    OF_PREDICTED,
                ),
                curves=(
                    CurveSpec(
                        x="largest_b",
                        y=("time_us", "predicted_us"),
                        by=("fused",),
                        chart=("backend", "memory", "ranks", "collective"),
                        log=True,
                    ),
                ),
            ),
        ),
        reading="Few small buffers waste no alpha; many hide more of the exchange under the backward pass. Advice is "
        "given only where the sweep is steady and saturated.",
        source="alpha in seconds and beta as a rate, after R. Hockney 1994; R. Thakur et al. 2005 call the time of a "
        "byte beta",
    ),
    Lab(
        name="pipeline",
        question="How large is the bubble of a pipeline, F-then-B and 1F1B?",
        backends=ALL,
        tables=(
            TableSpec(
                name="pipeline",
                title="One step of p stages and m micro-batches",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="ranks", title="p", about="stages, one a rank"),
                    Column(key="micro", title="m", about="micro-batches"),
                    Column(
                        key="schedule",
                        title="schedule",
                        about="F-then-B: all forward passes first; 1F1B: forward and backward in turn",
                    ),
                    TIME,
                    Column(key="predicted_us", title="predicted", unit="us", about="by going through all passes"),
                    Column(key="bubble", title="bubble", unit="share", about="of the step that a stage idles"),
                    Column(key="formula", title="(p-1)/(m+p-1)", unit="share"),
                    Column(key="held", title="held", about="micro-batches whose activations a stage keeps at most"),
                    DATA,
                ),
                curves=(
                    CurveSpec(
                        x="micro", y=("bubble", "formula"), by=("schedule",), chart=("backend", "memory", "ranks")
                    ),
                ),
            ),
        ),
        reading="Both schedules idle alike; 1F1B keeps p activations instead of m. Stages wait instead of computing, "
        "so that ranks which share cores show it too.",
        source="GPipe (Huang et al. 2019); PipeDream-Flush (Narayanan et al. 2021)",
    ),
    Lab(
        name="halo",
        question="What share of a stencil's step is the exchange of borders?",
        backends=ALL,
        tables=(
            TableSpec(
                name="halo",
                title="Five-point stencil, strips of rows, borders to both neighbours",
                columns=(
                    BACKEND,
                    MEMORY,
                    RANKS,
                    Column(key="size_b", title="border", unit="B"),
                    Column(key="rows", title="rows a rank", about="of the grid, each as long as the border"),
                    Column(key="time_us", title="step", unit="us"),
                    Column(key="compute_us", title="compute", unit="us", about="the stencil alone"),
                    Column(key="exchange_us", title="exchange", unit="us", about="the borders alone"),
                    PREDICTED,
                    Column(key="share", title="share", unit="share", about="exchange / (exchange + compute)"),
                    DATA,
                ),
                curves=(
                    CurveSpec(
                        x="rows",
                        y=("exchange_us", "predicted_us"),
                        by=("size_b",),
                        chart=("backend", "memory", "ranks"),
                        log=True,
                    ),
                ),
            ),
            LINK,
        ),
        reading="The border grows with the edge of a strip, the computation with its area.",
    ),
    Lab(
        name="backends",
        question="Mean step time, throughput and speed-up by backend, GPUs of a server, and servers?",
        backends=ALL,
        fewest=1,
        tables=(
            TableSpec(
                name="backends",
                title="Data-parallel training step",
                columns=(
                    BACKEND,
                    MEMORY,
                    Column(key="gdr", title="GDR", about="GPUDirect RDMA"),
                    SERVERS,
                    Column(key="per_server", title="per server", about="ranks on each server"),
                    RANKS,
                    Column(key="time_us", title="step", unit="us"),
                    Column(key="rate", title="throughput", unit="samples/s", about="ranks x batch / step"),
                    Column(key="speed_up", title="speed-up", unit="ratio", about="throughput / that of one rank"),
                    Column(key="efficiency", title="efficiency", unit="share", about="speed-up / ranks"),
                ),
                curves=(
                    CurveSpec(
                        x="ranks", y=("speed_up",), by=("backend", "memory", "gdr"), chart=(), log=True, ideal=True
                    ),
                    CurveSpec(x="ranks", y=("rate",), by=("backend", "memory", "gdr"), chart=(), log=True),
                ),
            ),
        ),
        reading="Weak scaling: each rank takes the same batch. Efficiency is speed-up over ranks; none is claimed "
        "where ranks share cores.",
    ),
    Lab(
        name="models",
        question="How does the ratio of computation to communication decide the speed-up?",
        backends=ALL,
        tables=(
            TableSpec(
                name="models",
                title="Models of different ratio",
                columns=(
                    BACKEND,
                    MEMORY,
                    RANKS,
                    Column(key="model", title="model"),
                    Column(key="size_b", title="gradients", unit="B"),
                    Column(key="compute_us", title="compute", unit="us", about="step of one rank"),
                    Column(
                        key="communicate_us", title="exchange", unit="us", about="all_reduce of all gradients at once"
                    ),
                    Column(key="ratio", title="ratio", unit="ratio", about="compute / exchange"),
                    Column(key="time_us", title="step", unit="us"),
                    Column(key="speed_up", title="speed-up", unit="ratio", about="ranks x compute / step"),
                    Column(
                        key="no_overlap",
                        title="no overlap",
                        unit="ratio",
                        about="speed-up where nothing overlaps: ranks x compute / (compute + exchange)",
                    ),
                ),
                curves=(CurveSpec(x="ranks", y=("speed_up", "no_overlap"), by=("model",), log=True, ideal=True),),
            ),
        ),
        reading="The higher the ratio, the nearer the speed-up comes to the number of ranks.",
    ),
)
BY_NAME = {lab.name: lab for lab in LABS}
