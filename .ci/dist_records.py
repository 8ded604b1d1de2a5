"""What comes with a release: an SBOM (CycloneDX) for each wheel, and the provenance of all files (in-toto)."""

from __future__ import annotations

import email
import hashlib
import importlib.metadata
import json
import os
import uuid
import zipfile
from typing import Any

BUILD_TOOLS = ("build", "setuptools", "wheel", "ziglang", "ninja", "torch", "packaging")
BUILD_TYPE = "urn:opforge:make-dist:1"
LIBCXX = "libc++, libc++abi and libunwind of LLVM, linked into each library by zig"


def sbom(wheel: str) -> bytes:
    """Returns the SBOM of a wheel: what it requires, the libraries in it, and what is linked into them.

    Source: the CycloneDX specification 1.6.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
        libraries = {name: archive.read(name) for name in names if name.endswith(".so")}
    name, version = metadata["Name"], metadata["Version"]
    main = f"pkg:pypi/{name}@{version}"
    components: list[dict[str, Any]] = []
    for requirement in metadata.get_all("Requires-Dist", []):
        if "extra ==" in requirement:
            continue
        required = requirement.replace(" ", "").partition(">=")[0]
        components.append(
            {"type": "library", "bom-ref": f"pkg:pypi/{required}", "name": required, "purl": f"pkg:pypi/{required}"}
        )
    for path, content in sorted(libraries.items()):
        hashes = [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
        components.append({"type": "file", "bom-ref": path, "name": path, "hashes": hashes})
    if libraries:
        zig = importlib.metadata.version("ziglang")
        licence = [{"expression": "Apache-2.0 WITH LLVM-exception"}]
        linked = {"type": "library", "bom-ref": "libc++", "name": "libc++", "version": f"of zig {zig}"}
        components.append({**linked, "description": LIBCXX, "licenses": licence})
    with open(wheel, "rb") as file:
        whole = hashlib.sha256(file.read()).hexdigest()
    described = {
        "type": "library",
        "bom-ref": main,
        "name": name,
        "version": version,
        "purl": main,
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
        "hashes": [{"alg": "SHA-256", "content": whole}],
    }
    value = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'sha256:{whole}')}",
        "version": 1,
        "metadata": {"component": described},
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": [component["bom-ref"] for component in components]}],
    }
    return _json(value)


def provenance(digests: dict[str, str], commit: str, epoch: int) -> bytes:
    """Returns an in-toto statement of how files were made, unsigned: a release workflow signs it.

    Source: SLSA's provenance format, version 1.
    """
    tools = {name: importlib.metadata.version(name) for name in BUILD_TOOLS}
    dependencies = [{"uri": f"pkg:pypi/{name}@{version}"} for name, version in sorted(tools.items())]
    value = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": value}} for name, value in sorted(digests.items())],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": commit, "SOURCE_DATE_EPOCH": epoch},
                "resolvedDependencies": [{"digest": {"gitCommit": commit}}, *dependencies],
            },
            "runDetails": {"builder": {"id": os.environ.get("OPFORGE_BUILDER_ID", "urn:opforge:local")}},
        },
    }
    return _json(value)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode() + b"\n"
