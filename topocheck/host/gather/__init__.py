"""All answers of the machine collected by child processes, each with a deadline."""
