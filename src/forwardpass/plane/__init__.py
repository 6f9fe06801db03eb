"""Event planes: where relayed messages go, behind one narrow seam."""
