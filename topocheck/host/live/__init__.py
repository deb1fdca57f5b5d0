"""What this machine itself answers: files, commands, NVML, CUDA, psutil."""
