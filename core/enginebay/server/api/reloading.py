"""`POST /v1/config/reload`."""

from dataclasses import asdict

from fastapi import APIRouter, Depends, Request

from enginebay.config.problems import ConfigError
from enginebay.contract.errors import InvalidRequestError
from enginebay.server.access.auth import require_admin
from enginebay.server.schemas.about_bodies import ConfigReload
from enginebay.server.services import services

router = APIRouter(tags=["server"])


@router.post("/config/reload", dependencies=[Depends(require_admin)])
async def reload_config(http: Request) -> ConfigReload:
    """Read the config's file again and apply what has changed; running answers are not disturbed.

    400 with every problem, and no change, if it is invalid.
    """
    try:
        done = await services(http).reload.run()
    except ConfigError as error:
        raise InvalidRequestError(
            f"the config is invalid, nothing was changed:\n{error}"
        ) from error
    return ConfigReload(**asdict(done.models), needs_restart=done.needs_restart)
