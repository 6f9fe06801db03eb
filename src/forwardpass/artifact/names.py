"""Knows the names of a benchmark's files: of each rank, the merged one, and the sidecar beside it."""

from __future__ import annotations

from pathlib import Path

__all__ = ["base_path", "merged_path", "rank_path", "sidecar_path"]


def rank_path(base: Path, rank: int) -> Path:
    """Return the file of ``rank``: rank 0 has ``base`` itself, others ``<stem>_dp<rank><ext>``."""
    return base if rank == 0 else base.with_name(f"{base.stem}_dp{rank}{base.suffix}")


def base_path(path: Path, rank: int) -> Path:
    """Return the name that was given for a run whose ``rank`` has the file ``path``."""
    return path.with_name(f"{path.stem.removesuffix(f'_dp{rank}')}{path.suffix}") if rank else path


def merged_path(base: Path, first_rank: int = 0) -> Path:
    """Return the merged file of a launcher whose lowest rank is ``first_rank``."""
    middle = "" if first_rank == 0 else f"_dp{first_rank}"
    return base.with_name(f"{base.stem}{middle}_merged{base.suffix}")


def sidecar_path(merged: Path) -> Path:
    """Return the file with the workers' replies that belongs to the file ``merged``."""
    return merged.with_name(f"{merged.stem}_worker_probe{merged.suffix}")
