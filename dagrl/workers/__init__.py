"""What runs in a worker process: the model workers of the roles, and how a node is run on one."""
