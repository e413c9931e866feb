"""The models that are served."""

from core.models.loaded import LoadedModel, ReportModelProgress, State
from core.models.models import Models

__all__ = ["LoadedModel", "Models", "ReportModelProgress", "State"]
