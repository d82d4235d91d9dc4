"""``python -m penstock``: run the command without an installed script."""

import sys

from penstock.cli import main

sys.exit(main())
