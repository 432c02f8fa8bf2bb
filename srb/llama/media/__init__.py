"""Images and sounds: `projector.py` encodes them with mtmd, the others read files that may be hostile."""
