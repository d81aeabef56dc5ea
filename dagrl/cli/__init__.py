"""The command line: dagrl run, dagrl plan. Reads pipeline files and options; prints; sets exit codes."""
