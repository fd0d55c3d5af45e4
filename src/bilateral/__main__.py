"""`python -m bilateral` is the command `bilateral`."""

from bilateral.cli.main import main

main()
