"""The one primitive for child processes: start, events, deadline, end, and nothing left behind."""
