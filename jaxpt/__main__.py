"""`python -m jaxpt` is `jaxpt`."""

import sys

from jaxpt.cli import main

sys.exit(main())
