"""What is read of the machine: its GPUs, and the host while a job runs."""
