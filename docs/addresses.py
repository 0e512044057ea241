"""A hook of MkDocs: takes the addresses of the repository and the site from pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any


def on_config(config: Any, project: Path = Path("pyproject.toml")) -> Any:
    """Set site_url and repo_url from [project.urls], if it exists."""
    urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    config["site_url"] = urls.get("Documentation", config["site_url"])
    config["repo_url"] = urls.get("Repository", config["repo_url"])
    return config
