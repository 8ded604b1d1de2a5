"""The launcher: starts the ranks of a job, bound to cores and memory, through torchrun, MPI or Slurm."""
