"""Insert SASS snippets into a kernel of a cubin. See README.md of this folder."""

from gwatch.rewrite.result import PlacedSite, ReuseEdit, Rewritten
from gwatch.rewrite.rewriter import ENTRY, Rewriter
from gwatch.rewrite.snippet import Snippet

__all__ = ["ENTRY", "PlacedSite", "ReuseEdit", "Rewriter", "Rewritten", "Snippet"]
