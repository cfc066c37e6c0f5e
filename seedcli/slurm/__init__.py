"""`seed slurm`: job scripts for SLURM. It may import `config`, `envs` and `cluster`. Nothing but `cli` imports it."""
