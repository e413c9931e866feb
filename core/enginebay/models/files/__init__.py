"""Models as files: where they lie, and which backend recognises them."""
