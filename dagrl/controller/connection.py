"""Which Ray this process uses: what was made on one that has ended must not be asked of another, nor start one."""

import ray


def connection() -> str:
    """The Ray in use and this program's number there, empty without one; one that is joined again is another."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"
