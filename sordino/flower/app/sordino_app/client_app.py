"""What runs at every SuperNode. Add mods of your own to a ClientApp with `guard` first, to keep the client's agreement enforced."""

from sordino.flower.client_app import app

__all__ = ["app"]
