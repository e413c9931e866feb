"""`/api/v1`, `/api/latest`, `/api/extra`, as KoboldCpp has them: https://lite.koboldai.net/koboldcpp_api."""

from fastapi import APIRouter

router = APIRouter(tags=["kobold"])
