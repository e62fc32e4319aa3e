"""What runs beside the SuperLink."""

from sordino.engines.flower.server_app import app

__all__ = ["app"]
