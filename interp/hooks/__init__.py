"""The registry-based hook system: sites, selections, edits, taps, and the frozen values they speak of."""
