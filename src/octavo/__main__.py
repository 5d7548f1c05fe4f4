"""`python -m octavo` is the `octavo` command."""

from octavo.cli.main import main

main()
