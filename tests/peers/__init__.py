"""The real systems, where they are installed. Each module says with `available()` why it cannot be used, or ''."""
