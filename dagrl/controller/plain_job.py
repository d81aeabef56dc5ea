"""What Ray is told of this program."""

from ray.job_config import JobConfig


class PlainJob(JobConfig):
    """A job whose workers find modules where every Python of the installation does.

    Ray would put this program's working folder and script folder first on their sys.path, before it has loaded all of
    its own libraries: a user's file of the name of one would be taken for it. It does not where the job brings a
    folder of its own.
    """

    def _runtime_env_has_working_dir(self) -> bool:
        return True
