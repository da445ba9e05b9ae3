"""`python -m jaxpt` is `jaxpt`."""

from jaxpt.cli import start

if __name__ == "__main__":  # a recipe may name any module
    start()
