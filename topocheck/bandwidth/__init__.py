"""Bandwidth tests without the running of them: cases, plans, statistics, assessment, baseline, cost model."""
