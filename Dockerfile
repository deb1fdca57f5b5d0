# topocheck for nodes whose own Python is older than 3.11, and for Kubernetes (integrations/kubernetes).
#
#     docker build -t topocheck .
#     docker run --rm --gpus all topocheck report
#
# PCIe settings that need root (ACS, payload sizes): add `--user 0 --cap-add SYS_ADMIN`. RDMA devices: `--device
# /dev/infiniband`. The driver's libraries come from the NVIDIA container toolkit, by the capabilities named below.
FROM debian:trixie-slim AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md LICENSE /src/
COPY topocheck /src/topocheck
COPY integrations /src/integrations
COPY docs/schema /src/docs/schema
COPY docs/man /src/docs/man
RUN python3 -m venv /opt/topocheck \
    && /opt/topocheck/bin/pip install --no-cache-dir /src \
    && /opt/topocheck/bin/python -m compileall -q /opt/topocheck/lib

FROM debian:trixie-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends pci.ids python3 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/topocheck /opt/topocheck
RUN ln -s /opt/topocheck/bin/topocheck /usr/local/bin/topocheck \
    && topocheck --version
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility,compute
USER 65534:65534
ENTRYPOINT ["topocheck"]
CMD ["report"]
