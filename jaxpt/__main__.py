"""`python -m jaxpt` is `jaxpt`."""

from jaxpt.cli import start

start()
