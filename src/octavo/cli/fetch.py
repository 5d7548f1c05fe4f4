"""The model that a verb was given -> its file, with a progress bar and a word on where it came from."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.api.models import resolve_model
from octavo.cli.progress import download_progress
from octavo.config import from_env
from octavo.store.manifest import Manifest, list_models


def model_file(model: str) -> tuple[Path, Manifest | None]:
    """The file of a path, a stored model, or a catalog model, which is fetched on first use.

    The manifest is that of what was fetched just now, None if nothing was. Raises: ModelNotFound, StoreError.
    """
    home = from_env().home
    before = list_models(home)
    with download_progress() as progress:
        path = resolve_model(model, home=home, progress=progress)
    fetched = [manifest for manifest in list_models(home) if manifest not in before]
    for manifest in fetched:
        print(f"Fetched {provenance(manifest)}", file=sys.stderr)
    return path, fetched[0] if fetched else None


def provenance(manifest: Manifest) -> str:
    """What a stored model is and where it came from, in a line."""
    about = f" ({manifest.description}; licence {manifest.license})" if manifest.description else ""
    return (
        f"{manifest.name}{about}: {readable_size(manifest.size_bytes)} from {manifest.source}, "
        f"SHA-256 {manifest.sha256[:12]}… verified"
    )


def readable_size(num_bytes: int) -> str:
    """Megabytes, as downloads count them: 98.4 MB."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
