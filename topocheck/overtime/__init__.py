"""What changes on a machine over time: samples, growth of counters, and the file they are recorded in. Pure."""
