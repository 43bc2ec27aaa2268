"""``python -m gwatch`` is the console script."""

from gwatch.cli.main import main

raise SystemExit(main())
