"""The one sampler of a running machine: `watch`, and `bw` while it measures."""
