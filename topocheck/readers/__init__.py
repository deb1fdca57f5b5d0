"""Facts from what people hand over: lspci's text, nvidia-smi's, kernel logs, XML files, bug reports, our own files.

A reader turns one text into *recorded answers*: the questions that the probes ask of a machine (host/base.py), with
what the text says in reply. Then the probes make the facts, as they do from a snapshot. So there is one place that
knows what `-1` in `numa_node` means, every check and every picture works unchanged, a set of texts can be saved as a
snapshot, and what a text does not tell is `not_recorded`, which no check takes for good or for bad.

Where a text holds what no file or call of the machine says in that form (the registers that `lspci -vvv` spells out),
there is a question of its own (`lspci:ADDRESS`), whose answer is the text, and the probe has the parser.

    files -> files.py (gzip, tar, sections) -> formats/* (recognise, read) -> merge.py -> answers -> probes

A format is recognised by what stands in it, never by its name. Several may be recognised in one text. Two files that
answer one question differently are reported by `consistency.sources-differ`; the first is used.
"""
