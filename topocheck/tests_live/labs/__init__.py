"""The experiments of `topocheck lab`: planned, run by ranks, made into tables."""
