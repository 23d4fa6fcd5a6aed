"""Weights from the model hub: resumable, each way of failing has its own message. The token is never shown."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from labctl.artifacts.store import folder_bytes
from labkit import disk
from labkit.errors import LabError
from labkit.waiting import call_repeatedly

WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]
WANTED_WITHOUT_SAFETENSORS = ["*.json", "*.bin", "*.txt", "*.model"]
IGNORED = ["onnx/*", "*.onnx", "openvino/*", "64*", "coreml/*", "consolidated*"]  # the same weights once more


def download(name: str, revision: str | None, target: Path, partial: Path, tell: Callable[[str], None]) -> str:
    """Fetch a snapshot into ``target`` and return the commit that it is.

    Args:
        revision: a branch, tag or commit; None for the newest.
        partial: a folder that stays between attempts: an interrupted download goes on where it was.

    Raises:
        LabError: no network, no token (401), terms not accepted (403), no such model or revision.
        OSError: the disk is full or cannot be written.
    """
    from huggingface_hub.utils import disable_progress_bars, filter_repo_objects

    disable_progress_bars()  # the folder itself says how many bytes there are
    api = _api()
    with _explained(name, revision):
        tell(f"asking for {name}")
        info = api.model_info(name, revision=revision, files_metadata=True)
        names = [file.rfilename for file in info.siblings or []]
        patterns = WANTED if any(n.endswith(".safetensors") for n in names) else WANTED_WITHOUT_SAFETENSORS
        wanted = [
            *filter_repo_objects(
                info.siblings or [], allow_patterns=patterns, ignore_patterns=IGNORED, key=lambda file: file.rfilename
            )
        ]
        total = sum(file.size or 0 for file in wanted) / 1e6

        def tell_bytes() -> None:
            tell(f"{folder_bytes(partial) / 1e6:,.0f} of {total:,.0f} MB fetched")

        with call_repeatedly(tell_bytes, 1.0, "download"):
            api.snapshot_download(
                name, revision=info.sha, local_dir=partial, allow_patterns=patterns, ignore_patterns=IGNORED
            )
    belongs = {Path(file.rfilename) for file in wanted}  # an attempt before may have left another commit's files
    for path in [*partial.rglob("*")]:
        if (inside := path.relative_to(partial)) in belongs:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target / inside)
    shutil.rmtree(partial, ignore_errors=True)
    return str(info.sha)


def require_access(name: str, revision: str | None) -> None:
    """Raises LabError, as :func:`download` does, for a model that may not be fetched; nothing is fetched."""
    api = _api()
    with _explained(name, revision):
        api.model_info(name, revision=revision)
        api.auth_check(name)  # a gated model's page is open to all, its files are not


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or "https://huggingface.co")


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno in disk.FAULTS:
            raise
        raise explain(error, name, revision) from None


def explain(error: Exception, name: str, revision: str | None) -> LabError:
    """The hub's refusal in a person's words. The original is not chained: its text may carry headers."""
    import httpx
    from huggingface_hub import errors, get_token

    page = f"the page of {name} on the hub"
    status = _status(error)
    gated = isinstance(error, errors.GatedRepoError)
    if gated and status == 401:
        given = "the token in use is not valid" if get_token() else "no token is set"
        return LabError(
            f"the hub refuses access to {name} (401)",
            f"its terms must be accepted first, and {given}",
            f"accept them on {page}, and set HF_TOKEN to a token of that account (hf auth login)",
            code="hub-terms-unaccepted",
        )
    if gated or status == 403:
        return LabError(
            f"the hub denies access to {name} (403)",
            "the account of this token has not accepted its terms",
            f"accept them on {page}, then try again",
            code="hub-terms-unaccepted",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return LabError(
            f"{name} has no revision '{revision}'", "", f"see the revisions on {page}", code="hub-revision-unknown"
        )
    if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
        given = "the token in use is not valid for it" if get_token() else "no token is set"
        return LabError(
            f"the hub refuses access to {name} (401)",
            f"there is no such public model, and {given}",
            "check the id, or set HF_TOKEN to a token that may read it (hf auth login)",
            code="hub-refused",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return LabError(
            f"there is no model {name} on the hub",
            "",
            "check the id, or set HF_TOKEN if it is private",
            code="hub-model-unknown",
        )
    if status:
        often = "wait some minutes, or set HF_TOKEN: with an account more requests are allowed"
        later = "try again later" if status >= 500 else "check the id, and HF_ENDPOINT if it is set"
        return LabError(
            f"{name} cannot be fetched: the hub answers with status {status}",
            "what was fetched so far is kept",
            often if status == 429 else later,
            code="hub-status",
        )
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    if offline or isinstance(error, httpx.TransportError | errors.LocalEntryNotFoundError):
        why = "offline mode is on (HF_HUB_OFFLINE)" if offline else "the hub does not answer"
        return LabError(
            f"{name} is not cached and cannot be fetched: {why}",
            "what was fetched so far is kept",
            "check the network and try again, or leave the setting out: the labs' own models need no hub",
            code="hub-unreachable",
        )
    if isinstance(error, httpx.TooManyRedirects | httpx.InvalidURL | json.JSONDecodeError):
        why = "it redirects without an end, or to a page that is no hub's"
        remedy = "check HF_ENDPOINT if it is set, and whether this network asks for a login"
        return LabError(f"{name} cannot be fetched: what answers is no model hub", why, remedy, code="hub-foreign")
    return LabError(f"fetching {name} failed", type(error).__name__, "try again", code="hub-failed")


def _status(error: BaseException | None) -> int:
    """The status of the answer that an error, or what caused it, is about; 0 where there was no answer."""
    while error:
        if (response := getattr(error, "response", None)) is not None:
            return int(response.status_code)
        error = error.__cause__
    return 0
