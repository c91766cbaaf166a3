"""Guarded uploads: a form with a file, and a body that the endpoint reads as it comes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, UploadFile

from oncekey import AsyncOnce
from oncekey.http.fastapi import Idempotency

FOLDER = Path(os.environ["GUARDED_FOLDER"])


def account(authorization: Annotated[str, Header()] = "") -> str:
    if authorization != "Bearer alice":
        raise HTTPException(401, "who?")
    return "alice"


app = FastAPI()
once = AsyncOnce(f"sqlite:///{FOLDER}/keys.db")
idempotency = Idempotency(once, caller=Depends(account))
idempotency.attach(app)


@app.post("/file")
@idempotency.guard(max_request=1024**3)
async def file(upload: UploadFile) -> dict[str, str | int]:
    digest = hashlib.sha256()
    while chunk := await upload.read(65536):
        digest.update(chunk)
    return {"size": upload.size or 0, "digest": digest.hexdigest()}


@app.post("/stream")
@idempotency.guard(max_request=1024**3)
async def stream(request: Request) -> dict[str, str | int]:
    digest, size = hashlib.sha256(), 0
    async for chunk in request.stream():
        digest.update(chunk)
        size += len(chunk)
    return {"size": size, "digest": digest.hexdigest()}


@app.get("/peak")
def peak() -> int:
    """The most memory this process has held, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
