"""`python -m interp` is the `interp` command."""

from interp.cli import main

raise SystemExit(main())
