"""What runs beside the SuperLink."""

from sordino.flower.server_app import app

__all__ = ["app"]
