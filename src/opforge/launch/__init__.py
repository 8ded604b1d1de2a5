"""The launcher: puts a job's processes on hosts, cores and memory, by engines that exist (torchrun, MPI, Slurm)."""
