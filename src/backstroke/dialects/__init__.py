"""Other systems' names, inputs, attributes and defaults for our functions: tables and renaming, no mathematics."""
