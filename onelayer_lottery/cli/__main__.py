"""``python -m onelayer_lottery.cli`` is the command onelayer-lottery."""

import sys

from onelayer_lottery.cli.program import main

sys.exit(main())
