"""Write the addresses of the project into pyproject.toml, before a release is built.

    python scripts/project_urls.py ADDRESS

ADDRESS is the repository that publishes the release, such as https://github.com/OWNER/ortrain. pyproject.toml in the repository
contains no addresses, because a fork would then show the addresses of another project.
"""

from __future__ import annotations

import pathlib
import sys


def with_urls(project: str, address: str) -> str:
    """Return the text of pyproject.toml with the addresses, which package indexes show beside the description."""
    address = address.rstrip("/")
    if not address.startswith("https://"):
        raise ValueError(f"expected the https:// address of a repository, found {address!r}")
    if "[project.urls]" in project:
        raise ValueError("expected a pyproject.toml without addresses, found [project.urls]")
    before, scripts, after = project.partition("[project.scripts]\n")
    if not scripts:
        raise ValueError("expected a table [project.scripts] in pyproject.toml, found none")
    urls = {
        "Homepage": address,
        "Documentation": f"{address}/tree/main/docs",
        "Changelog": f"{address}/blob/main/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return f"{before}[project.urls]\n{lines}\n{scripts}{after}"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = pathlib.Path("pyproject.toml")
    try:
        path.write_text(with_urls(path.read_text(), sys.argv[1]))
    except ValueError as error:
        sys.exit(f"project_urls: {error}")
