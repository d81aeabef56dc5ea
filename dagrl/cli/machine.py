"""Which machine the commands plan for."""

from typing import Literal

import click

from dagrl.compiler.machine import LOCAL, Machine

Kind = Literal["local", "ray"]


def planned_machine(executor: Kind) -> Machine:
    """The machine of a plan that nothing runs: this one; no cluster is asked."""
    if executor == "local":
        return LOCAL
    from dagrl.controller.machines import this_machine

    return this_machine()


def machine_of(executor: Kind, address: str | None) -> Machine:
    """The machine of a run; a cluster that is named is joined to ask it.

    Raises:
        ClusterError: when nothing answers there.
        click.UsageError: when an address is given to a run that needs no cluster.
    """
    if executor == "local":
        if address:
            raise click.UsageError("`--address` names a Ray to join, and `--executor local` runs in this process")
        return LOCAL
    from dagrl.controller.machines import join_ray, ray_machine

    return ray_machine(join_ray(address))
