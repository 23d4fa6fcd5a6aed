"""Renders a stack's model repository from templates and parameters: all files, or all problems at once."""

from __future__ import annotations

import contextlib
import filecmp
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from labctl.litter import files_in
from labctl.texts import PLACEHOLDER, Problem, Replacement, fill, merge_yaml, unfilled_in_quotes
from labkit.disk import need_space, replace_dir
from labkit.errors import LabError

CONFIG = "config.pbtxt"
BLOCK = 4096  # bytes that even a short file takes on a disk


@dataclass(frozen=True)
class RenderRequest:
    """A request to render a repository.

    Attributes:
        sources: template folders, one subfolder per model; a later one replaces files of an earlier one.
        models: the models to render; empty: all models of the sources.
        parameters: a value per placeholder; one that no template uses is a problem.
        output: the folder that is swapped in when everything is right.
        defaults: a value per placeholder that has none in ``parameters``; templates need not use them.
        optional: keys for which an empty value is a meaning of its own.
        files: files that replace those of every source, by their path in the repository.
        place: links, by their path in the repository, and their targets.
        family: the folder of models to take if several of upstream's have a model of one name.
        documents: JSON files of the templates, by their path in the repository, and what is set in them.
        spare: a parameter that no template uses is not a problem, because a person may have edited it out.
        lenient: a placeholder in quotes that has no value stays, as upstream's own filler leaves it; the backend takes
            it for "not set". For TensorRT-LLM's templates, which may be newer than our table.
        hint: the origin of the templates, for the remedy of an error.
    """

    sources: Sequence[Path]
    models: Sequence[str]
    parameters: Mapping[str, Any]
    output: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    optional: Collection[str] = ()
    replacements: Sequence[Replacement] = ()
    files: Mapping[str, Path] = field(default_factory=dict)
    place: Mapping[str, str] = field(default_factory=dict)
    family: str | None = None
    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    spare: bool = False
    lenient: bool = False
    hint: str | None = None


def listing(request: RenderRequest) -> list[str]:
    """Every path that :func:`render_repository` would write, below the output. Raises LabError as it does."""
    files, _ = _fill_files(request)
    return sorted({*files, *request.place})


def unused_parameters(request: RenderRequest) -> list[str]:
    """Parameters that no template of any source uses; a source that replaces another's template may use fewer."""
    by_source = [origins(replace(request, sources=[source], models=())) for source in request.sources]
    configs = [path for files in by_source for name, path in files.items() if name.endswith(f"/{CONFIG}")]
    used = {key for path in configs for key in PLACEHOLDER.findall(path.read_text("utf-8", "replace"))}
    return [key for key in request.parameters if key not in used]


def unfilled_placeholders(request: RenderRequest) -> list[str]:
    """The placeholders that stay as they are because they have no value. Raises LabError as
    :func:`render_repository`.
    """
    values = {**request.defaults, **request.parameters}
    texts = [path.read_text("utf-8", "replace") for name, path in origins(request).items() if name.endswith(CONFIG)]
    return sorted({key for text in texts for key in unfilled_in_quotes(text)} - values.keys())


def without_effect(keys: Sequence[str]) -> str:
    """The notice about the parameters of :func:`unused_parameters`."""
    return f"setting {', '.join(keys)} has no effect: no template uses {'it' if len(keys) == 1 else 'them'}"


def render_repository(request: RenderRequest) -> list[str]:
    """Render into a fresh folder and swap it in. Returns the models. Raises LabError with all problems."""
    files, texts = _fill_files(request)
    blocks = sum(math.ceil(source.stat().st_size / BLOCK) for source in files.values())
    need_space(request.output, blocks * BLOCK)
    with replace_dir(request.output) as fresh:
        for relative in {**files, **request.place}:
            target = fresh / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            if relative in request.place:
                target.symlink_to(request.place[relative])
            elif relative in texts:
                target.write_text(texts[relative], encoding="utf-8")
            else:
                shutil.copyfile(files[relative], target)
        models = sorted(path.name for path in fresh.iterdir())
        for model in models:
            if not any(path.name.isdigit() for path in (fresh / model).iterdir()):
                (fresh / model / "1").mkdir()  # Triton wants a version folder, git keeps no empty ones
    return models


def find_differences(request: RenderRequest) -> dict[str, list[Path]]:
    """Compare what is in the output with what would be rendered: the differing files of each model, by their source.

    Raises LabError as :func:`render_repository` does.
    """
    files, texts = _fill_files(request)
    there = (path.relative_to(request.output).as_posix() for path in files_in(request.output))
    found: dict[str, list[Path]] = {}
    for name in sorted({*files, *request.place, *there}):
        if not _is_as_rendered(request, name, files, texts):
            found.setdefault(name.partition("/")[0], []).append(files.get(name, request.output / name))
    return found


def _is_as_rendered(request: RenderRequest, name: str, files: Mapping[str, Path], texts: Mapping[str, str]) -> bool:
    written = request.output / name
    with contextlib.suppress(OSError):  # it is not there
        if name in request.place:
            return str(written.readlink()) == request.place[name]
        if name in texts:
            return written.read_bytes() == texts[name].encode()
        return name in files and filecmp.cmp(files[name], written, shallow=False)
    return False


def _fill_files(request: RenderRequest) -> tuple[dict[str, Path], dict[str, str]]:
    """The source of each file, and the texts of the filled templates, by path. Raises LabError with all problems."""
    files = origins(request)
    problems: list[Problem] = []
    texts: dict[str, str] = {}
    used: set[str] = set()
    unmatched = list(request.replacements)
    values = {**request.defaults, **request.parameters}
    for relative, source in files.items():
        if not relative.endswith(f"/{CONFIG}"):
            continue
        try:
            template = source.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            problems.append(Problem(relative, None, None, f"not UTF-8: {error.reason} at byte {error.start}"))
            continue
        for replacement in request.replacements:
            if replacement.file == relative and replacement.find in template:
                template = template.replace(replacement.find, replacement.replace)
                unmatched = [r for r in unmatched if r is not replacement]
        used |= {*PLACEHOLDER.findall(template)}
        texts[relative], unfilled = fill(relative, template, values, request.optional, request.lenient)
        problems += unfilled
        if not unfilled:
            problems += _faults(relative, texts[relative])
    problems += [
        Problem(r.file, None, None, f"'{r.find}' is to be replaced, but it is nowhere in the template")
        for r in unmatched
    ]
    for relative, changes in request.documents.items():
        try:
            texts[relative] = change_document(files[relative].read_text(encoding="utf-8"), changes)
        except KeyError:
            problems.append(Problem(relative, None, None, "the templates have no such file"))
        except ValueError as error:
            problems.append(Problem(relative, None, None, " ".join(str(error).split())))
    problems += [
        Problem("place", None, link, "leads out of the repository")
        for link in request.place
        if PurePosixPath(link).is_absolute() or ".." in PurePosixPath(link).parts
    ]
    if not request.spare:
        idle = [key for key in request.parameters if key not in used]
        problems += [Problem("parameters", None, key, "no template uses it") for key in idle]
    if problems:
        raise LabError(
            f"the model repository cannot be rendered: {len(problems)} problem{'s' if len(problems) > 1 else ''}",
            "",
            "; ".join(filter(None, ("correct what is named above; nothing was written", request.hint))),
            details=[str(problem) for problem in problems],
            code="template-invalid",
        )
    return files, texts


def _faults(file: str, text: str) -> list[Problem]:
    """What is wrong with a filled template, as far as protobuf's parser for Python tells.

    What a model or an ensemble lacks, Triton says when it loads them.
    """
    from google.protobuf import text_format

    folder = file.split("/", 1)[0]
    try:
        config = text_format.Parse(text, _config_messages().ModelConfig())
    except (text_format.ParseError, ValueError) as error:  # the second: an enum's number of more than 32 bits
        line = getattr(error, "GetLine", lambda: None)() or 0
        there = f" ({text.splitlines()[line - 1].strip()})" if 0 < line <= text.count("\n") else ""
        return [Problem(file, line, None, f"{' '.join(str(error).split())}{there}")]
    if config.name and config.name != folder:
        return [Problem(file, None, "name", f"says '{config.name}', but the folder is {folder}")]
    return []


def origins(request: RenderRequest) -> dict[str, Path]:
    """Every file to render, by its path in the repository, from the last source that has it. Raises LabError."""
    files: dict[str, Path] = {}
    for source in request.sources:
        for model, folder in _models(source, request.models, request.family).items():
            for path in files_in(folder):
                files[f"{model}/{path.relative_to(folder).as_posix()}"] = path
    missing = [name for name in request.models if f"{name}/{CONFIG}" not in files]
    if missing:
        where = ", ".join(map(str, request.sources))
        raise LabError(
            f"no template for {', '.join(missing)}",
            f"looked for MODEL/{CONFIG} below {where}",
            request.hint or "",
            code="template-missing",
        )
    own = {place: path for place, path in request.files.items() if place.partition("/")[0] in request.models}
    if lost := [path for path in own.values() if not path.is_file()]:
        raise LabError(f"there is no file {lost[0]}", "a setting names it", code="own-file-missing")
    return files | own


def _models(source: Path, wanted: Collection[str], family: str | None) -> dict[str, Path]:
    """The folder of each model below one source, at whatever depth (upstream nests them in families)."""
    places: dict[str, list[Path]] = {}
    for config in files_in(source, f"**/{CONFIG}"):
        if not wanted or config.parent.name in wanted:
            places.setdefault(config.parent.name, []).append(config.parent)
    chosen = {}
    for model, folders in places.items():
        candidates = folders
        if len(folders) > 1:
            candidates = [folder for folder in folders if folder.parent.name == family] or folders
        if len(candidates) > 1:
            raise LabError(
                f"the templates below {source} have the model {model} more than once",
                "it is not clear which one is meant",
                "name one folder of models with --templates",
                details=[str(folder) for folder in candidates],
                code="template-ambiguous",
            )
        chosen[model] = candidates[0]
    return chosen


def change_document(text: str, changes: Mapping[str, Any]) -> str:
    """The JSON file with ``changes`` merged in by key. Raises ValueError: it is not a mapping."""
    own = json.loads(text)
    if not isinstance(own, dict):
        raise ValueError("the file is not a mapping")
    return json.dumps(merge_yaml(own, changes), indent=2) + "\n"


def _config_messages() -> Any:
    """Import the messages of a model's configuration without the client library around them, which takes 0.2 s."""
    name = "tritonclient.grpc.model_config_pb2"
    if name not in sys.modules:
        package = importlib.util.find_spec("tritonclient")
        assert package and package.submodule_search_locations
        path = Path(package.submodule_search_locations[0], "grpc", "model_config_pb2.py")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules.setdefault(name, module)  # whole, whoever else looks for it meanwhile
    return sys.modules[name]
