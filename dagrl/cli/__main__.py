"""``python -m dagrl.cli``: the same as the ``dagrl`` command."""

from dagrl.cli.main import main

main()
