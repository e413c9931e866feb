"""What a wing gets of the server. It may change at any time, with the wings of Enginebay itself."""

from enginebay.server.services import Services as Kernel

__all__ = ["Kernel"]
