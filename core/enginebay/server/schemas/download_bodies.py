"""Bodies of `/v1/download`, those of TabbyAPI."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads import Progress, Wanted


def _sendable(token: SecretStr) -> SecretStr:
    if not all("!" <= character <= "~" for character in token.get_secret_value()):
        raise ValueError("a token has ASCII characters without spaces")
    return token


_Patterns = Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=100)]


class DownloadRequest(BaseModel):
    """A repository, and which of its files. Empty strings and lists count as unset.

    `quant`: those of one model, as `GET /v1/hub/files` names it, in place of `include`.
    `api_server` and `api_type` are what SillyTavern notes for itself.
    """

    model_config = ConfigDict(extra="allow")

    repo_id: Annotated[str, Field(max_length=200)]
    repo_type: Literal["model", "lora"] | None = None
    folder_name: str | None = None
    revision: Annotated[str, Field(max_length=200)] | None = None
    token: Annotated[SecretStr, AfterValidator(_sendable)] | None = None
    include: _Patterns = []
    exclude: _Patterns = []
    quant: Annotated[str, Field(max_length=200)] | None = None
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stream: bool = False
    api_server: str | None = None
    api_type: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_means_unset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        lists = {name: data.get(name) for name in ("include", "exclude")}
        filled = {
            name: [pattern for pattern in value if pattern != ""]
            for name, value in lists.items()
            if isinstance(value, list)
        }
        return {n: v for n, v in (data | filled).items() if v not in (None, "") or n == "repo_id"}

    def wanted(self) -> Wanted:
        """What is to be downloaded. `InvalidRequestError` if that is said in two ways."""
        if self.quant and (self.include or self.exclude):
            raise InvalidRequestError(
                "`quant` chooses the files: leave out `include` and `exclude`", param="quant"
            )
        return Wanted(
            repo_id=self.repo_id,
            kind=self.repo_type,
            folder_name=self.folder_name,
            revision=self.revision,
            token=self.token.get_secret_value() if self.token else None,
            include=tuple(self.include),
            exclude=tuple(self.exclude),
            quant=self.quant,
            timeout=self.timeout,
        )


class DownloadResponse(BaseModel):
    """Where the files are now."""

    download_path: str


class DownloadEvent(BaseModel):
    """Progress of a streamed download, in bytes and files; the last event has the path.

    `waiting`: for another process, which downloads into the same folder.
    """

    status: Literal["waiting", "processing", "finished"]
    file: str
    completed: int
    total: int
    completed_files: int
    files: int
    download_path: str | None = None

    @classmethod
    def of(cls, progress: Progress) -> "DownloadEvent":
        """One event."""
        under_way: Literal["waiting", "processing"] = (
            "waiting" if progress.waiting else "processing"
        )
        return cls(
            status="finished" if progress.path else under_way,
            file=progress.file,
            completed=progress.completed,
            total=progress.total,
            completed_files=progress.completed_files,
            files=progress.files,
            download_path=str(progress.path) if progress.path else None,
        )
