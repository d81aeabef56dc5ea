"""Runs a plan: in this process now. Emits frozen events; never decides an order."""
