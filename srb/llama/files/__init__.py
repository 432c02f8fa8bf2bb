"""Model files: how they are found, read without being loaded, converted, and whether they fit into memory."""
