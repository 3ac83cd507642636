"""Where cells are computed: in this process, in a pool of processes, or on a cluster."""
