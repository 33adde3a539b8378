"""The version of the library, and whether it is published."""

__version__ = "0.1.0a1"

PUBLISHED = False
"""Whether the package index has the library. Until then nothing tells users to install it from there, since anyone can
register its name. `scripts/published` writes what depends on this into other files; messages read it."""
