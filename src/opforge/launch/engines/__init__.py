"""The programs that start ranks: torchrun, MPI, Slurm."""
