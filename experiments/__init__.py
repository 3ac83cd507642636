"""One module per experiment, found by entry point; nothing in `interp` imports this package."""
