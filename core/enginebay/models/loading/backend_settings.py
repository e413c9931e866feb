"""What a backend is given to make an engine of a model, or an estimate of it."""

from enginebay.config.schema import ModelConfig, resolved_path
from enginebay.contract.backend_settings import BackendSettings, ReportProgress
from enginebay.contract.registers import BackendEntry
from enginebay.models.check_config import validated_options
from enginebay.models.files.model_paths import ModelPaths


def backend_settings(
    config: ModelConfig, entry: BackendEntry, paths: ModelPaths, report_progress: ReportProgress
) -> BackendSettings:
    """The settings of a model for its backend, with the paths of its files and checked options.

    `BackendUnavailableError` for options that the backend does not accept. Blocks briefly. Of a
    backend whose engines run elsewhere, they find the files.
    """
    path = resolved_path(config.path, paths.base)
    local = config.model_copy(update={"path": path}) if entry.elsewhere else paths.localized(config)
    return BackendSettings(
        name=config.name,
        path=local.path,
        base=str(paths.base),
        options=validated_options(local, entry),
        report_progress=report_progress,
        isolation=config.isolation,
        kv_store=paths.kv_store,
    )
